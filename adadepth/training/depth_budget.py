"""Depth budgets: measures of depth, and the training extension that keeps the mean depth at a target.

The measured depth need not be differentiable; a smooth version of it carries the gradient. Each measurement consists of
a sum and a count, which can be added over micro-batches and processes. Their quotient is the mean depth.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.budget.controller import BudgetController, BudgetSchedule, Response
from adadepth.budget.target import CEILINGS, get_full_depth, is_held
from adadepth.config import BudgetConfig
from adadepth.halting.trace import DepthTrace
from adadepth.models.contract import DepthModel, HoldsBudget
from adadepth.models.shared.losses import combine_terms
from adadepth.runtime.devices import move_to_float64_device, select_float64_device
from adadepth.runtime.distributed import all_reduce_sum
from adadepth.runtime.files import write_atomic
from adadepth.runtime.json_files import read_json
from adadepth.training.extension import Batch, Extension


class DepthReading(NamedTuple):
    """Depth of a batch as a sum and its divisor (number of units or compute at full depth), float64 scalars."""

    total: Tensor
    units: Tensor


def read_updates(model: Any, trace: DepthTrace) -> DepthReading:
    """Measure the mean number of updates of the batch's tokens or sequences.

    If a task mixes the states of several layers, its depth is that of the deepest state with a positive weight.
    """
    return DepthReading(trace.updates.double().sum(), trace.valid.double().sum())


def read_macs(model: DepthModel, trace: DepthTrace) -> DepthReading:
    """Measure the compute at the depths in a trace as a share of the compute at full depth, in MACs."""
    work = model.price(trace)
    return DepthReading(work.adaptive.double(), work.full.double())


def read_expected_layer(model: Any, trace: DepthTrace) -> DepthReading:
    """Measure the mean layer sum_n w_n n under the learned layer weights w_n, once per sequence."""
    assert trace.layer_weights is not None
    states = torch.arange(len(trace.layer_weights), device=trace.layer_weights.device)
    units = trace.valid.double().sum()
    return DepthReading((trace.layer_weights.double() * states).sum() * units, units)


def read_milliseconds(model: Any, trace: DepthTrace) -> DepthReading:
    """Measure the latency of a supernet's currently most probable operations, in milliseconds."""
    latency: Tensor = model.latency()
    return DepthReading(latency.double(), torch.ones_like(latency, dtype=torch.float64))


_SAMPLED, _EXACT = Response(), Response(smoothing=0.0)
# The most probable operations respond late: the multiplier changes its sign before gates cross again.
_GATES = Response(smoothing=0.0, integral=2e-3, proportional=0.24)


@dataclass(frozen=True)
class Measure:
    """Measure of depth (such as updates or MACs) for which a depth budget can set a target.

    Attributes:
        read: Function that takes the model and a trace and returns the measured depth of a batch.
        smooth: Function that takes the model and its outputs and returns the smooth depth as a `LossTerm`.
        response: Response of the controller. It smooths the mean over the units of a batch, which is noisy, but not a
            depth that is computed exactly from the model itself.
    """

    read: Callable[[Any, DepthTrace], DepthReading]
    smooth: Callable[[Any, Any], Any] = lambda model, outputs: model.soft_depth(outputs)
    response: Response = _SAMPLED


def _compute_expected_depth(model: Any, outputs: Any) -> Any:
    return model.expected_depth(outputs)


MEASURES: dict[str, Measure] = {
    "updates": Measure(read_updates),
    "macs": Measure(read_macs),
    "deepest_layer": Measure(read_updates, response=_EXACT),
    "expected_layer": Measure(read_expected_layer, smooth=_compute_expected_depth, response=_EXACT),
    "milliseconds": Measure(read_milliseconds, smooth=_compute_expected_depth, response=_GATES),
}


def full_depth(unit: str, model: Any) -> float:
    """Return the full depth of a model in the unit of its depth budget, the upper limit of a target."""
    depth = get_full_depth(unit, model.max_updates)
    return float(model.config.full_latency if depth is None else depth)


STATE = "budget.json"
BUDGET_PREFIX = "budget/"  # of the names in the log


@torch.no_grad()
def shift_bias(bias: Tensor | None, shift: Tensor) -> None:
    """Add a number to a halting bias, in place."""
    assert bias is not None
    bias += shift.to(bias)


class _ControllerState(TypedDict):
    """Budget controller's state in a checkpoint: multiplier, smoothed depth, and last measured depth."""

    state: tuple[float, float, float]
    begun: bool


class TrainingBudget(Extension, TrainerCallback):
    """Training extension that keeps the mean depth at the target of a depth budget.

    The multiplier is constant within an optimiser step and depends only on earlier steps. It is therefore the same for
    all micro-batches and processes.

    Args:
        settings: Settings of the budget, with a `target`.
        model: Model that provides the measured and the smooth depth in the unit of the budget.
        device: Device of training.
        teaches_depth: Function that returns whether training on a batch can change the depth.
    """

    def __init__(
        self,
        settings: BudgetConfig,
        model: HoldsBudget,
        device: torch.device,
        teaches_depth: Callable[[Batch], bool],
    ) -> None:
        assert settings.target is not None
        self._teaches_depth = teaches_depth
        self.model = model
        self.unit = settings.unit.value
        self.measure = MEASURES[self.unit]
        schedule = BudgetSchedule(
            settings.target,
            full_depth(self.unit, model),
            model.max_updates,
            settings.grow,
            settings.hold,
            settings.ramp,
            settings.grow_from,
        )
        device = select_float64_device(device)
        self.controller = BudgetController(
            schedule, settings.gain, device, self.measure.response, moves_bias=model.halting_bias is not None
        )
        self.progress = 0.0
        self._depths = torch.zeros(2, dtype=torch.float64, device=device)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Count the tokens or sequences of a micro-batch whose depth the budget can change, 0 if there are none."""
        units = self.model.count_units(batch)
        return {"budget": units if self._teaches_depth(batch) else torch.zeros_like(units)}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the schedule of a resumed run to its last optimiser step, since it may be evaluated before the next one.

        The halting bias does not move: the stored weights contain the shift of that step.
        """
        if state.global_step > 0:
            self._set_schedule(state.global_step - 1, state.max_steps)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the schedule to the optimiser step that begins, and shift the model's halting bias."""
        self._set_schedule(state.global_step, state.max_steps)
        if self.controller.moves_bias:
            shift_bias(self.model.halting_bias, self.controller.compute_bias_shift(self.progress))

    def _set_schedule(self, step: int, max_steps: int) -> None:
        """Set the training progress, and the model's forced or largest depth at that progress.

        While the depth grows, all units are forced to one depth. Once the target is reached, it is the maximum depth if
        the unit of the budget allows a ceiling.
        """
        self.progress = step / max(max_steps, 1)
        if self.controller.schedule.grow > 0:
            self.model.force_depth(self.controller.schedule.compute_forced_depth(self.progress))
        if self._has_ceiling:
            self.model.limit_depth(int(self.controller.schedule.target))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remove a forced depth from the model, even if training ends before the depth has fully grown."""
        if self.controller.schedule.grow > 0:
            self.model.force_depth(None)

    @property
    def is_growing(self) -> bool:
        """Whether the budget is still in its growth phase, with one depth for all tokens or sequences."""
        return self.controller.schedule.compute_forced_depth(self.progress) is not None

    def loss_parts(self, outputs: Any, counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the penalty on depth: the controller's multiplier times the mean smooth depth."""
        return {"budget": self._compute_penalty(outputs, counts["budget"])}

    def _compute_penalty(self, outputs: Any, units: Tensor) -> Tensor:
        measured = self.measure.read(self.model, move_to_float64_device(outputs.trace, outputs.loss.device))
        is_counted = (units > 0).to(self._depths.device)
        self._depths += torch.stack([measured.total, measured.units]).detach().to(self._depths) * is_counted
        if self.is_growing:
            return torch.zeros((), device=self._depths.device)
        depth, _ = combine_terms({"budget": self.measure.smooth(self.model, outputs)}, {"budget": units})
        weigh = self.controller.reward if self._has_ceiling else self.controller.price
        return weigh(self.progress).to(depth.device) * depth

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Update the controller with the mean depth of this optimiser step."""
        all_reduce_sum([self._depths])
        total, count = self._depths.unbind()
        self.controller.advance(total, count, self.progress)
        self._depths = torch.zeros_like(self._depths)

    @property
    def _has_arrived(self) -> bool:
        """Whether the scheduled target depth has reached its final value."""
        return self.controller.schedule.compute_target(self.progress) == self.controller.schedule.target

    @property
    def _has_ceiling(self) -> bool:
        """Whether the target equals full depth, so that only too shallow a depth needs correction."""
        return self.unit in CEILINGS and self._has_arrived

    def allows_best(self) -> bool:
        """Return whether the model may become the best one, which requires that it meets the depth budget."""
        return self.is_held

    def keeps_full_depth(self) -> bool:
        """Return whether the schedule still holds full depth."""
        return self.controller.schedule.compute_target(self.progress) == self.controller.schedule.full

    @property
    def is_held(self) -> bool:
        """Whether the measured depth is within tolerance of the target, and the target no longer changes."""
        if not self._has_arrived:
            return False
        measured = self.controller.figures(self.progress)["measured"]
        return is_held(measured, self.controller.schedule.target, self.unit)

    def logs(self) -> dict[str, float]:
        """Return target depth, measured depth and multiplier for the training log."""
        return {f"{BUDGET_PREFIX}{name}": value for name, value in self.controller.figures(self.progress).items()}

    def format_logs(self, logs: Mapping[str, float]) -> Iterator[str]:
        """Yield measured depth and target depth as text for the console."""
        if f"{BUDGET_PREFIX}measured" in logs:
            yield f"depth {logs[f'{BUDGET_PREFIX}measured']:.2f} of {logs[f'{BUDGET_PREFIX}target']:.2f}"

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the state of the budget controller, equal on all processes, to a checkpoint."""
        if process == 0:
            write_atomic(checkpoint / STATE, json.dumps(self.controller.state_dict()))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Read the state of the budget controller from a checkpoint."""
        self.controller.load_state_dict(read_json(checkpoint / STATE, _ControllerState))
