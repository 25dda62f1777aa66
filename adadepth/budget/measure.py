"""The hard depth of a batch, in the unit of a budget, read from its trace.

A measure is a sum and a count, so that it adds up over micro-batches and processes; their quotient is the mean depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from adadepth.halting.trace import DepthTrace


class Measure(NamedTuple):
    """Depths of a batch: their sum, and the units (or the work) it is divided by; float64 scalars."""

    total: Tensor
    units: Tensor


def measure_updates(model: Any, trace: DepthTrace) -> Measure:
    """Updates, of all units."""
    return Measure(trace.updates.double().sum(), trace.valid.double().sum())


def measure_macs(model: Any, trace: DepthTrace) -> Measure:
    """Multiply-accumulates that the traced depths need, over those of full depth."""
    work = model.price(trace)
    return Measure(work.adaptive.double(), work.full.double())


MEASURES: dict[str, Callable[[Any, DepthTrace], Measure]] = {"updates": measure_updates, "macs": measure_macs}


def full_depth(unit: str, max_depth: int) -> float:
    """What full depth is in a unit."""
    return 1.0 if unit == "macs" else float(max_depth)
