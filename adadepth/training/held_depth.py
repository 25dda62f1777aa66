"""What a budget can be about: a hard depth that is measured, and the smooth one beside it that is paid for.

A reading is a sum and a count, so that it adds up over micro-batches and processes; their quotient is the mean depth.
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
from adadepth.budget.target import CEILINGS, full_in, is_held
from adadepth.families.contract import DepthModel, HoldsBudget
from adadepth.families.shared.losses import combine_terms
from adadepth.halting.trace import DepthTrace
from adadepth.settings import BudgetConfig
from adadepth.system.files import write_atomic
from adadepth.system.json_files import read_json
from adadepth.system.processes import add_over_processes
from adadepth.training.extension import Batch, Extension


class DepthReading(NamedTuple):
    """Depths of a batch: their sum, and the units (or the work) it is divided by; float64 scalars."""

    total: Tensor
    units: Tensor


def read_updates(model: Any, trace: DepthTrace) -> DepthReading:
    """Updates, of all units; of a task that mixes layers, the deepest state with weight."""
    return DepthReading(trace.updates.double().sum(), trace.valid.double().sum())


def read_macs(model: DepthModel, trace: DepthTrace) -> DepthReading:
    """Multiply-accumulates that the traced depths need, over those of full depth."""
    work = model.price(trace)
    return DepthReading(work.adaptive.double(), work.full.double())


def read_expected_layer(model: Any, trace: DepthTrace) -> DepthReading:
    """sum_n w_n n, the mean depth of the mixed states, once for every sequence."""
    assert trace.layer_weights is not None
    states = torch.arange(len(trace.layer_weights), device=trace.layer_weights.device)
    units = trace.valid.double().sum()
    return DepthReading((trace.layer_weights.double() * states).sum() * units, units)


def read_milliseconds(model: Any, trace: DepthTrace) -> DepthReading:
    """What the most probable operation of every block takes, of the one architecture."""
    found: Tensor = model.latency()
    return DepthReading(found.double(), torch.ones_like(found, dtype=torch.float64))


_SAMPLED, _EXACT = Response(), Response(smoothing=0.0)
# The most probable operations change long after the price does: its sign has to turn before gates cross again.
_GATES = Response(smoothing=0.0, integral=2e-3, proportional=0.24)


@dataclass(frozen=True)
class Measure:
    """A unit of budgets.

    Attributes:
        read: The hard depth of a batch, from model and trace.
        smooth: What the price is paid on, a `LossTerm`, from model and outputs.
        response: How the controller answers it. A batch is a sample of its units, and its mean is noisy; what is
            read off the model itself is not.
    """

    read: Callable[[Any, DepthTrace], DepthReading]
    smooth: Callable[[Any, Any], Any] = lambda model, outputs: model.soft_depth(outputs)
    response: Response = _SAMPLED


def _expected(model: Any, outputs: Any) -> Any:
    return model.expected_depth(outputs)


MEASURES: dict[str, Measure] = {
    "updates": Measure(read_updates),
    "macs": Measure(read_macs),
    "deepest_layer": Measure(read_updates, response=_EXACT),
    "expected_layer": Measure(read_expected_layer, smooth=_expected, response=_EXACT),
    "milliseconds": Measure(read_milliseconds, smooth=_expected, response=_GATES),
}


def full_depth(unit: str, model: Any) -> float:
    """Full depth of a model in the unit of a budget."""
    found = full_in(unit, model.max_updates)
    return float(model.config.full_latency if found is None else found)


STATE = "budget.json"
BUDGET_PREFIX = "budget/"  # how the names of what is logged begin


class _ControllerState(TypedDict):
    """The multiplier, the smoothed and the last measured depth, and whether one was measured."""

    state: tuple[float, float, float]
    begun: bool


class TrainingBudget(Extension, TrainerCallback):
    """Holds the mean depth of training at what the user set.

    One price a whole update, a function of earlier updates only: neither micro-batches nor processes can change it.

    Args:
        settings: With a `target`.
        model: A model that counts its depth, with the smooth one that the unit of the budget asks for.
        device: Of training.
        teaches_depth: Whether anything that a batch teaches can change the depth.
    """

    def __init__(
        self,
        settings: BudgetConfig,
        model: HoldsBudget,
        device: torch.device,
        teaches_depth: Callable[[Batch], bool],
    ) -> None:
        assert settings.target is not None
        max_updates = model.max_updates
        self._teaches_depth = teaches_depth
        self.model = model
        self.unit = settings.unit.value
        self.measure = MEASURES[self.unit]
        schedule = BudgetSchedule(
            settings.target,
            full_depth(self.unit, model),
            max_updates,
            settings.grow,
            settings.hold,
            settings.ramp,
            settings.grow_from,
        )
        self.controller = BudgetController(schedule, settings.gain, device, self.measure.response)
        self.progress = 0.0
        self._depths = torch.zeros(2, dtype=torch.float64, device=device)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Units of a micro-batch; what cannot be changed is not counted."""
        units = self.model.count_units(batch)
        return {"budget": units if self._teaches_depth(batch) else torch.zeros_like(units)}

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the place of an update in the schedule; a growing model grows with it, a ceiling comes at its end."""
        self.progress = state.global_step / max(state.max_steps, 1)
        if self.controller.schedule.grow > 0:
            self._force_depth(self.controller.schedule.forced_at(self.progress))
        if self._is_barred:
            self.model.limit_depth(int(self.controller.schedule.target))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the model as it will be loaded: tokens halt, should training have ended before they did."""
        if self.controller.schedule.grow > 0:
            self._force_depth(None)

    def _force_depth(self, depth: int | None) -> None:
        self.model.force_depth(depth)

    @property
    def is_growing(self) -> bool:
        """Whether the schedule still forces one depth on every unit."""
        return self.controller.schedule.forced_at(self.progress) is not None

    def loss_parts(self, outputs: Any, counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Price times smooth depth, averaged over the units of the update."""
        return {"budget": self._term(outputs, counts["budget"])}

    def _term(self, outputs: Any, units: Tensor) -> Tensor:
        measured = self.measure.read(self.model, outputs.trace)
        is_counted = (units > 0).to(self._depths.device)
        self._depths += torch.stack([measured.total, measured.units]).detach().to(self._depths) * is_counted
        if self.is_growing:
            return torch.zeros((), device=self._depths.device)
        depth, _ = combine_terms({"budget": self.measure.smooth(self.model, outputs)}, {"budget": units})
        price = self.controller.reward(self.progress) if self._is_barred else self.controller.price(self.progress)
        return price.to(depth.device) * depth

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Tell the controller how deep the units of an update were, over all micro-batches and processes."""
        add_over_processes([self._depths])
        total, count = self._depths.unbind()
        self.controller.advance(total, count, self.progress)
        self._depths = torch.zeros_like(self._depths)

    @property
    def _has_arrived(self) -> bool:
        """Whether the schedule has come to the target."""
        return self.controller.schedule.target_at(self.progress) == self.controller.schedule.target

    @property
    def _is_barred(self) -> bool:
        """Whether nothing can be too deep any more: then only being shallower than the target is answered."""
        return self.unit in CEILINGS and self._has_arrived

    def allows_best(self) -> bool:
        """Only a model that holds the budget: an earlier, deeper one would win by its depth."""
        return self.is_held

    @property
    def is_held(self) -> bool:
        """Whether the schedule has come to the target, and the measured depth with it."""
        if not self._has_arrived:
            return False
        target = self.controller.schedule.target
        measured = self.controller.figures(self.progress)["measured"]
        return is_held(measured, target, self.unit)

    def logs(self) -> dict[str, float]:
        """Target, measured depth and multiplier, under the names of the log."""
        return {f"{BUDGET_PREFIX}{name}": value for name, value in self.controller.figures(self.progress).items()}

    def words(self, logs: Mapping[str, float]) -> Iterator[str]:
        """The depth, and what it is to be."""
        if f"{BUDGET_PREFIX}measured" in logs:
            yield f"depth {logs[f'{BUDGET_PREFIX}measured']:.2f} of {logs[f'{BUDGET_PREFIX}target']:.2f}"

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the controller's state, which is the same in all processes."""
        if process == 0:
            write_atomic(checkpoint / STATE, json.dumps(self.controller.state_dict()))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Take the controller's state from a checkpoint."""
        self.controller.load_state_dict(read_json(checkpoint / STATE, _ControllerState))
