"""Timing of several functions in alternation, by medians, because a machine's speed drifts."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)


def time_interleaved(
    calls: Mapping[Name, Callable[[], object]],
    repeats: int,
    warmup: int,
    device: torch.device,
    after: Callable[[], None] = lambda: None,
) -> dict[Name, dict[str, float]]:
    """Time several functions in alternation, and return the percentiles of their times.

    The arguments are those of `time_rounds`.

    Returns:
        Mapping from names to `median`, `p10` and `p90` in seconds, and to `n`, the number of measurements.
    """
    shares = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    times = {}
    for name, seconds in time_rounds(calls, repeats, warmup, device, after).items():
        low, middle, high = torch.tensor(seconds, dtype=torch.float64).quantile(shares).tolist()
        times[name] = {"median": middle, "p10": low, "p90": high, "n": len(seconds)}
    return times


def time_rounds(
    calls: Mapping[Name, Callable[[], object]],
    repeats: int,
    warmup: int,
    device: torch.device,
    after: Callable[[], None] = lambda: None,
) -> dict[Name, list[float]]:
    """Time several functions in alternation, each once per round, and return their seconds in every measured round.

    Args:
        calls: Functions to time, by name.
        repeats: Number of rounds that are measured.
        warmup: Number of rounds before the measured ones.
        device: Device that the functions use; it is synchronised before and after each call.
        after: Function that is called after every call and not timed.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in calls}
    for number in range(warmup + repeats):
        for name, call in calls.items():
            elapsed = _time_call(call, device)
            after()
            if number >= warmup:
                seconds[name].append(elapsed)
    return seconds


class TimeRatio(NamedTuple):
    """Median ratio of two times over rounds, with the smallest and the largest ratio of a round."""

    median: float
    low: float
    high: float


def compare_rounds(numerator: Sequence[float], denominator: Sequence[float]) -> TimeRatio:
    """Return the ratio of two times over rounds in which both were measured in alternation.

    The range over n rounds contains the median ratio with probability 1 - 2^(1 - n), whatever the distribution of
    times (interval of the sign test): 97 % for 6 rounds.

    Args:
        numerator: Seconds of one function by round, (n,).
        denominator: Seconds of the other function in the same rounds, (n,).
    """
    ratios = [first / second for first, second in zip(numerator, denominator, strict=True)]
    return TimeRatio(median(ratios), min(ratios), max(ratios))


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
