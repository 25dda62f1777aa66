"""Timing of several functions in alternation, by medians, because a machine's speed drifts."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)


def time_interleaved(
    calls: Mapping[Name, Callable[[], object]],
    repeats: int,
    warmup: int,
    device: torch.device,
    after: Callable[[], None] = lambda: None,
) -> dict[Name, dict[str, float]]:
    """Time several functions in alternation, each once per round, and return their times.

    Args:
        calls: Functions to time, by name.
        repeats: Number of rounds that are measured.
        warmup: Number of rounds before the measured ones.
        device: Device that the functions use; it is synchronised before and after each call.
        after: Function that is called after every call and not timed.

    Returns:
        Mapping from names to `median`, `p10` and `p90` in seconds, and to `n`, the number of measurements.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in calls}
    for _ in range(warmup + repeats):
        for name, call in calls.items():
            seconds[name].append(_time_call(call, device))
            after()
    shares = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    times = {}
    for name, values in seconds.items():
        measured = torch.tensor(values[warmup:], dtype=torch.float64)
        low, median, high = measured.quantile(shares).tolist()
        times[name] = {"median": median, "p10": low, "p90": high, "n": len(measured)}
    return times


def _time_call(call: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has finished its work; do nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
