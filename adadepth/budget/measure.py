"""What a budget can be about: a hard depth that is measured, and the smooth one beside it that is paid for.

A reading is a sum and a count, so that it adds up over micro-batches and processes; their quotient is the mean depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from adadepth.budget.controller import Response
from adadepth.halting.trace import DepthTrace

if TYPE_CHECKING:
    from adadepth.families.contract import DepthModel


class Reading(NamedTuple):
    """Depths of a batch: their sum, and the units (or the work) it is divided by; float64 scalars."""

    total: Tensor
    units: Tensor


def read_updates(model: Any, trace: DepthTrace) -> Reading:
    """Updates, of all units; of a task that mixes layers, the deepest state with weight."""
    return Reading(trace.updates.double().sum(), trace.valid.double().sum())


def read_macs(model: DepthModel, trace: DepthTrace) -> Reading:
    """Multiply-accumulates that the traced depths need, over those of full depth."""
    work = model.price(trace)
    return Reading(work.adaptive.double(), work.full.double())


def read_expected_layer(model: Any, trace: DepthTrace) -> Reading:
    """sum_n w_n n, the mean depth of the mixed states, once for every sequence."""
    assert trace.layer_weights is not None
    states = torch.arange(len(trace.layer_weights), device=trace.layer_weights.device)
    units = trace.valid.double().sum()
    return Reading((trace.layer_weights.double() * states).sum() * units, units)


def read_milliseconds(model: Any, trace: DepthTrace) -> Reading:
    """What the most probable operation of every block takes, of the one architecture."""
    found: Tensor = model.latency()
    return Reading(found.double(), torch.ones_like(found, dtype=torch.float64))


_SAMPLED, _EXACT = Response(), Response(smoothing=0.0)
# The most probable operations change long after the price does: its sign has to turn before gates cross again.
_GATES = Response(smoothing=0.0, integral=2e-3, proportional=0.24)


@dataclass(frozen=True)
class Measure:
    """A unit of budgets.

    Attributes:
        read: The hard depth of a batch, from model and trace.
        full: Full depth, from the model and its largest number of updates.
        smooth: What the price is paid on, a `LossTerm`, from model and outputs.
        response: How the controller answers it. A batch is a sample of its units, and its mean is noisy; what is
            read off the model itself is not.
    """

    read: Callable[[Any, DepthTrace], Reading]
    full: Callable[[Any, int], float] = lambda model, max_depth: float(max_depth)
    smooth: Callable[[Any, Any], Any] = lambda model, outputs: model.soft_depth(outputs)
    response: Response = _SAMPLED


def _expected(model: Any, outputs: Any) -> Any:
    return model.expected_depth(outputs)


MEASURES: dict[str, Measure] = {
    "updates": Measure(read_updates),
    "macs": Measure(read_macs, full=lambda model, max_depth: 1.0),
    "deepest_layer": Measure(read_updates, response=_EXACT),
    "expected_layer": Measure(read_expected_layer, smooth=_expected, response=_EXACT),
    "milliseconds": Measure(
        read_milliseconds,
        full=lambda model, max_depth: model.config.full_latency,
        smooth=_expected,
        response=_GATES,
    ),
}
