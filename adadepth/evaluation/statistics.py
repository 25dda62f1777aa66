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

    def update(self, trace: DepthTrace, units: Units, work: Work) -> None:
        """Add a batch."""

    def tensors(self) -> Sequence[Tensor]:
        """The sums, which add up over processes."""

    def summary(self) -> dict[str, Any]:
        """What halting.json holds."""


class UnitStatistics:
    """Depths of tokens, sequences or tasks, by class; see `HaltingStatistics`."""

    def __init__(
        self, max_depth: int, classes: Sequence[str], difficulties: int, device: torch.device, advice: str | None = None
    ) -> None:
        self._statistics = HaltingStatistics(max_depth, classes, device, difficulties)
        self._advice = advice

    def update(self, trace: DepthTrace, units: Units, work: Work) -> None:
        """Add a batch."""
        self._statistics.update(
            trace, units.classes, units.losses, units.states, work, right=units.right, difficulty=units.difficulty
        )

    def tensors(self) -> Sequence[Tensor]:
        """The sums, which add up over processes."""
        return self._statistics.tensors()

    def summary(self) -> dict[str, Any]:
        """What halting.json holds; a warning that depth does not adapt says what may help."""
        found = self._statistics.summary()
        if self._advice and (warning := found["adaptation"].get("warning")):
            found["adaptation"]["warning"] = f"{warning}: {self._advice}"
        return found


class ArchitectureStatistics:
    """The operations of every block, the same for all batches, and the work of a token."""

    def __init__(self, model: DepthModel, device: torch.device) -> None:
        self._model = model
        self._operations: list[list[float]] = []
        self._sums = torch.zeros(len(Work._fields) + 1, dtype=torch.float64, device=device)  # work, tokens

    def update(self, trace: DepthTrace, units: Units, work: Work) -> None:
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
    about = families().get(model.config.model_type)
    return UnitStatistics(model.max_updates, classes, difficulties, device, None if about is None else about.advice)
