"""A budget in training: what the controller measures, what a model pays, and how both survive an interruption."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.atomic import write_atomic
from adadepth.budget.controller import BudgetController, BudgetSchedule
from adadepth.budget.measure import MEASURES
from adadepth.config import BudgetConfig
from adadepth.families.shared.losses import LossTerm, combine_terms

STATE = "budget.json"
BUDGET = "budget/"  # how the names of what is logged begin
# A held target: what the measured depth may differ by, as a share of it.
TOLERANCE = 0.05


class Budgeted(Protocol):
    """What a model offers beside its trace, so that a budget can hold its depth."""

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Units of a batch whose depth is counted."""

    def soft_depth(self, outputs: Any) -> LossTerm:
        """The smooth depth of a batch's units, in updates, summed over them; see `adadepth.budget.depth`."""

    def expected_depth(self, outputs: Any) -> LossTerm:
        """The expected depth instead. Only for measures that ask for it."""

    def limit_depth(self, depth: int) -> None:
        """Let nothing be deeper from now on. Only for measures with a ceiling."""

    def force_depth(self, depth: int | None) -> None:
        """Give every unit this many updates from now on; None: let them halt. Only for budgets that grow."""


class TrainingBudget:
    """Holds the mean depth of training at what the user set.

    One price a whole update, a function of earlier updates only: neither micro-batches nor processes can change it.

    Args:
        settings: With a `target`.
        model: See `Budgeted`; it has `price` for budgets in multiply-accumulates.
        max_depth: Most updates of a unit.
        device: Of training.
    """

    def __init__(self, settings: BudgetConfig, model: Any, max_depth: int, device: torch.device) -> None:
        assert settings.target is not None
        self.model = model
        self.measure = MEASURES[settings.unit.value]
        schedule = BudgetSchedule(
            settings.target,
            self.measure.full(model, max_depth),
            max_depth,
            settings.grow,
            settings.hold,
            settings.ramp,
            settings.grow_from,
        )
        self.controller = BudgetController(schedule, settings.gain, device, self.measure.response)
        self.progress = 0.0
        self._depths = torch.zeros(2, dtype=torch.float64, device=device)

    def count_units(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Units of a micro-batch; the trainer adds them up over the update."""
        return self.model.count_units(batch)

    def begin_update(self, progress: float) -> None:
        """Take the place of an update in the schedule; a growing model grows with it, a ceiling comes at its end."""
        self.progress = progress
        if self.controller.schedule.grow > 0:
            self.model.force_depth(self.controller.schedule.forced_at(progress))
        if self._is_barred:
            self.model.limit_depth(int(self.controller.schedule.target))

    def end(self) -> None:
        """Leave the model as it will be loaded."""
        if self.controller.schedule.grow > 0:
            self.model.force_depth(None)

    @property
    def is_growing(self) -> bool:
        """Whether nobody halts yet."""
        return self.controller.schedule.forced_at(self.progress) is not None

    def term(self, outputs: Any, units: Tensor) -> Tensor:
        """This micro-batch's part of the loss: price times smooth depth, averaged over the `units` of the update."""
        measured = self.measure.read(self.model, outputs.trace)
        is_counted = (units > 0).to(self._depths.device)
        self._depths += torch.stack([measured.total, measured.units]).detach().to(self._depths) * is_counted
        if self.is_growing:
            return torch.zeros((), device=self._depths.device)
        depth, _ = combine_terms({"budget": self.measure.smooth(self.model, outputs)}, {"budget": units})
        price = self.controller.reward(self.progress) if self._is_barred else self.controller.price(self.progress)
        return price.to(depth.device) * depth

    def finish_update(self) -> None:
        """Tell the controller how deep the units of an update were, over all micro-batches and processes."""
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(self._depths)
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
        return self.measure.is_ceiling and self._has_arrived

    @property
    def is_held(self) -> bool:
        """Whether the schedule has come to the target, and the measured depth with it."""
        if not self._has_arrived:
            return False
        target = self.controller.schedule.target
        error = self.controller.figures(self.progress)["measured"] - target
        return (error if self.measure.is_ceiling else abs(error)) <= TOLERANCE * target

    def logs(self) -> dict[str, float]:
        """Target, measured depth and multiplier, under the names of the log."""
        return {f"{BUDGET}{name}": value for name, value in self.controller.figures(self.progress).items()}

    def save(self, checkpoint: Path) -> None:
        """Write the controller's state into a checkpoint."""
        write_atomic(checkpoint / STATE, json.dumps(self.controller.state_dict()))

    def load(self, checkpoint: Path) -> None:
        """Go on from a checkpoint."""
        self.controller.load_state_dict(json.loads((checkpoint / STATE).read_text(encoding="utf-8")))


class BudgetCallback(TrainerCallback):
    """Tells a budget when an update begins and ends."""

    def __init__(self, budget: TrainingBudget) -> None:
        self.budget = budget

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Where in the schedule the update lies."""
        self.budget.begin_update(state.global_step / max(state.max_steps, 1))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Let the controller see what the update was like."""
        self.budget.finish_update()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let tokens halt, should training have ended before they did."""
        self.budget.end()
