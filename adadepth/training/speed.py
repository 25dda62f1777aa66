"""Tokens per second: how many real tokens batches hold, and how long a model takes to read them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from adadepth.training.evaluation import add_over_processes

ForwardPass = tuple[dict[str, Tensor], Any]


def count_tokens(batch: Mapping[str, Tensor]) -> Tensor:
    """Real tokens of a batch, int64, (); of vectors, their values."""
    if "targets" in batch:
        return (batch["targets"] >= 0).sum()
    return batch["attention_mask"].sum() if "attention_mask" in batch else torch.tensor(batch["inputs"].numel())


class Stopwatch:
    """Real tokens of an evaluation, and the seconds spent on loading them and on the forward passes.

    Args:
        device: Where the model runs; an accelerator is waited for whenever the watch is read.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # tokens, seconds, processes
        self._sums[2] = 1

    def time(self, passes: Iterable[ForwardPass]) -> Iterator[ForwardPass]:
        """The passes as they are; what the caller does with each of them is not timed."""
        begun = self._now()
        for batch, outputs in passes:
            self._sums[1] += self._now() - begun
            self._sums[0] += count_tokens(batch)
            yield batch, outputs
            begun = self._now()
        self._sums[1] += self._now() - begun

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def tokens_per_second(self) -> float:
        """Tokens of all processes over the mean of their seconds; every process calls it once."""
        add_over_processes([self._sums])
        tokens, seconds, processes = self._sums.tolist()
        return tokens * processes / seconds
