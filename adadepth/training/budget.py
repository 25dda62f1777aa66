"""A budget in training: what the controller measures, what a model pays, and how both survive an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.atomic import write_atomic
from adadepth.budget.controller import BudgetController, BudgetSchedule
from adadepth.budget.held import CEILINGS, is_held
from adadepth.budget.measure import MEASURES
from adadepth.config import BudgetConfig
from adadepth.evaluation.processes import add_over_processes
from adadepth.families.contract import CountsDepth, DepthModel, ForcesDepth, LimitsDepth
from adadepth.families.shared.losses import combine_terms
from adadepth.training.extension import Batch, Extension

STATE = "budget.json"
BUDGET = "budget/"  # how the names of what is logged begin


class TrainingBudget(Extension, TrainerCallback):
    """Holds the mean depth of training at what the user set.

    One price a whole update, a function of earlier updates only: neither micro-batches nor processes can change it.

    Args:
        settings: With a `target`.
        model: That counts its depth, with the smooth one that the unit of the budget asks for.
        device: Of training.
        changes_depth: Whether anything that a batch teaches can change the depth; None: every batch.
    """

    def __init__(
        self,
        settings: BudgetConfig,
        model: DepthModel,
        device: torch.device,
        changes_depth: Callable[[Batch], bool] | None = None,
    ) -> None:
        assert settings.target is not None
        max_depth = model.max_updates
        self._changes_depth = changes_depth
        self.model = model
        self.unit = settings.unit.value
        self.measure = MEASURES[self.unit]
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

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Units of a micro-batch; what cannot be changed is not counted."""
        assert isinstance(self.model, CountsDepth)
        units = self.model.count_units(batch)
        changes = self._changes_depth is None or self._changes_depth(batch)
        return {"budget": units if changes else torch.zeros_like(units)}

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the place of an update in the schedule; a growing model grows with it, a ceiling comes at its end."""
        self.progress = state.global_step / max(state.max_steps, 1)
        if self.controller.schedule.grow > 0:
            self._force_depth(self.controller.schedule.forced_at(self.progress))
        if self._is_barred:
            assert isinstance(self.model, LimitsDepth)
            self.model.limit_depth(int(self.controller.schedule.target))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the model as it will be loaded: tokens halt, should training have ended before they did."""
        if self.controller.schedule.grow > 0:
            self._force_depth(None)

    def _force_depth(self, depth: int | None) -> None:
        assert isinstance(self.model, ForcesDepth)
        self.model.force_depth(depth)

    @property
    def is_growing(self) -> bool:
        """Whether nobody halts yet."""
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
        return {f"{BUDGET}{name}": value for name, value in self.controller.figures(self.progress).items()}

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the controller's state, which is the same in all processes."""
        if process == 0:
            write_atomic(checkpoint / STATE, json.dumps(self.controller.state_dict()))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Go on from it."""
        self.controller.load_state_dict(json.loads((checkpoint / STATE).read_text(encoding="utf-8")))
