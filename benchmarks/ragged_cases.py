"""Cases of the benchmark of ragged execution, and the cases that a machine cannot run."""

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from adadepth.runtime.timing import time_interleaved

PUBLISHED_MEANS = {6: 3.8, 12: 7.1, 24: 10.0}  # of all tokens, by cap: Simoulin & Crabbé 2021
DEPTHS, MODES = ("published", "shallow", "geometric"), ("inference", "training")
LEAST_ROUNDS = 3
KEPT_WIDTHS = 45  # values that a training step keeps for a token and an iteration, in hidden widths
MEMORY_SHARE = 0.7


@dataclass(frozen=True)
class Case:
    """Row of the table."""

    hidden: int
    depth: int
    depths: str
    mean: float
    length: int
    batch: int
    padding: bool
    mode: str

    def __str__(self) -> str:
        lengths = f"<={self.length}" if self.padding else f"{self.length}"
        return (
            f"{self.mode:<9} {self.hidden:4d} {self.depth:2d} {self.depths:<9} {self.mean:4.1f} {lengths:>5} "
            f"{self.batch:3d}"
        )


def make_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield every combination, inference first."""
    for mode in options.mode:
        for hidden in options.hidden:
            for depth in options.depth:
                for name, mean in list_head_kinds(depth, options.depths):
                    for length in options.length:
                        for batch in options.batch:
                            for padding in (False, True) if options.padding else (False,):
                                yield Case(hidden, depth, name, mean, length, batch, padding, mode)


def list_head_kinds(max_updates: int, kinds: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield name and mean of the depth distributions under a cap."""
    for kind in kinds:
        if kind == "shallow":
            yield from ((kind, mean) for smaller, mean in PUBLISHED_MEANS.items() if smaller < max_updates)
        else:
            yield kind, PUBLISHED_MEANS[max_updates]


def measure_rate(hidden: int, device: torch.device, dtype: torch.dtype) -> float:
    """Measure the multiply-accumulates a second of a feed-forward layer's product."""
    states = torch.randn(1024, hidden, device=device, dtype=dtype)
    weights = torch.randn(hidden, 4 * hidden, device=device, dtype=dtype)
    seconds = time_interleaved({"product": lambda: states @ weights}, 5, 2, device)["product"]["median"]
    return states.numel() * weights.shape[1] / seconds


def get_available_memory(device: torch.device) -> float:
    """Return the bytes that a row may take."""
    if device.type == "cuda":
        return MEMORY_SHARE * torch.cuda.mem_get_info()[0]
    return MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def describe_impossibility(case: Case, rate: float, max_seconds: float, memory: float) -> str | None:
    """Return why a row is left out, from its least time and memory; None if it is measured."""
    training = case.mode == "training"
    tokens = case.batch * case.length
    iteration = tokens * (12 * case.hidden**2 + 2 * case.length * case.hidden)
    round_macs = (2 * case.depth + 4 * case.mean) * iteration * (3 if training else 1)
    seconds = (LEAST_ROUNDS + 2) * round_macs / rate
    stored = 4.0 * KEPT_WIDTHS * case.hidden * tokens * (case.depth if training else 1)
    if stored > memory:
        return f"about {stored / 2**30:.0f} GiB, {memory / 2**30:.0f} GiB are there"
    if seconds > max_seconds:
        return f"about {seconds:.0f} s at the least, --max-seconds is {max_seconds:g}"
    return None
