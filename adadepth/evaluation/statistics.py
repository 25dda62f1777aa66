"""Which statistics a model's traces are summed up in: of units with depths of their own, or of one architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from adadepth.analysis.architecture.search import describe_architecture
from adadepth.analysis.measure.statistics import HaltingStatistics
from adadepth.analysis.measure.summary import describe_work
from adadepth.evaluation.scorer import Units
from adadepth.families.contract import DepthModel, LearnsGates
from adadepth.families.registry import families
from adadepth.halting.trace import DepthTrace, Work


class Statistics(Protocol):
    """Sums over batches and processes, of a size that does not depend on the set."""

    def add(self, trace: DepthTrace, units: Units, work: Work) -> None:
        """Add a batch."""

    def tensors(self) -> Sequence[Tensor]:
        """The sums, which add up over processes."""

    def summary(self) -> dict[str, Any]:
        """What halting.json holds."""


class UnitStatistics(HaltingStatistics):
    """Depths of tokens, sequences or tasks, by class; a warning that depth does not adapt says what may help."""

    advice: str | None = None

    def add(self, trace: DepthTrace, units: Units, work: Work) -> None:
        """Add a batch."""
        self.update(
            trace, units.classes, units.losses, units.states, work, right=units.right, difficulty=units.difficulty
        )

    def summary(self) -> dict[str, Any]:
        """What halting.json holds."""
        found = super().summary()
        if self.advice and "warning" in found["adaptation"]:
            found["adaptation"]["advice"] = self.advice
        return found


class ArchitectureStatistics:
    """The operations of every block, the same for all batches, and the work of a token."""

    def __init__(self, model: DepthModel, device: torch.device) -> None:
        self._model = model
        self._operations: list[list[float]] = []
        self._sums = torch.zeros(len(Work._fields) + 1, dtype=torch.float64, device=device)  # work, tokens

    def add(self, trace: DepthTrace, units: Units, work: Work) -> None:
        """Add a batch."""
        tokens = trace.executed.tokens
        assert trace.operations is not None
        assert tokens is not None
        if not self._operations:
            self._operations = trace.operations.weights.tolist()
        self._sums += torch.stack([*work, tokens.sum()]).double()

    def tensors(self) -> Sequence[Tensor]:
        """The sums, which add up over processes."""
        return [self._sums]

    def summary(self) -> dict[str, Any]:
        """`architecture`, see `describe_architecture`, and the `cost` of a token."""
        temperature = self._model.temperature if isinstance(self._model, LearnsGates) else None
        described = describe_architecture(self._operations, temperature)
        *work, tokens = self._sums.tolist()
        return {
            "unit": "architecture",
            "max_depth": described["blocks"],
            "architecture": described,
            "cost": describe_work([total / tokens for total in work]),
        }


def statistics_of(model: DepthModel, classes: Sequence[str], difficulties: int, device: torch.device) -> Statistics:
    """The statistics that fit what has a depth in this model."""
    if model.depth_unit == "architecture":
        return ArchitectureStatistics(model, device)
    found = UnitStatistics(model.max_updates, classes, device, difficulties)
    if (about := families().get(model.config.model_type)) is not None:
        found.advice = about.advice
    return found
