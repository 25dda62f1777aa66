"""Evaluation of a model on one data set: losses, depth statistics and task metrics, accumulated over batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from adadepth.evaluation.predictions import make_exit_kwargs
from adadepth.evaluation.scorer import EvaluationReport, Scorer, Units
from adadepth.evaluation.vocabulary import vocabulary_depths
from adadepth.halting.trace import DepthTrace, Work
from adadepth.metrics.architectures import describe_architecture
from adadepth.metrics.depth_statistics import HaltingStatistics, describe_work
from adadepth.models.contract import DepthModel, LearnsGates, MixesLayers
from adadepth.models.registry import families
from adadepth.runtime.distributed import all_reduce_sum, gather_from_processes


class TaskDepthReporter(Scorer):
    """Report builder for models with one depth per task. Its report describes layers instead of tokens or sequences."""

    def __init__(self, model: DepthModel) -> None:
        self._model = model
        self._reads_cached_states = False

    def add_examples(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Note whether the base model's states come from the cache on disk; this evaluation collects no examples."""
        self._reads_cached_states |= "states" in batch

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Return the distribution over layers, the parameter counts of head and base, and the source of the states."""
        if "layers" in statistics and isinstance(self._model, MixesLayers):
            statistics["layers"] |= {
                "added_parameters": self._model.added_parameters(),
                "base_parameters": self._model.base_parameters(),
                "from_cache": self._reads_cached_states,
                "is_set": not self._model.learns_distribution,
            }
        return EvaluationReport(statistics)


class LossAccumulator:
    """Accumulator of mean losses over prediction targets, which do not depend on batch size or world size."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # (2,) float64 by part: sum of losses, number of targets

    def add(self, parts: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> None:
        """Add the loss parts of a batch, each weighted by the number of targets over which it was averaged."""
        for name, part in parts.items():
            added = torch.stack([part.double() * counts[name], counts[name].double()])
            self._sums[name] = self._sums.get(name, torch.zeros_like(added)) + added

    def merge(self) -> None:
        """Sum the losses over all processes. Every process must call it, also one without examples."""
        total: dict[str, Tensor] = {}
        for parts in gather_from_processes({name: sums.cpu() for name, sums in self._sums.items()}):
            for name, sums in parts.items():
                total[name] = total.get(name, torch.zeros_like(sums)) + sums
        self._sums = total

    def means(self) -> dict[str, float]:
        """Return the mean `<part>_loss` of every loss part that has a target."""
        totals = {name: sums.tolist() for name, sums in self._sums.items()}
        return {f"{name}_loss": total / count for name, (total, count) in totals.items() if count}


class UnitStatistics(HaltingStatistics):
    """Accumulator of depth statistics over the tokens, sequences or tasks of an evaluation, by class."""

    advice: str | None = None

    def add(self, trace: DepthTrace, units: Units, work: Work) -> None:
        """Add the tokens, sequences or tasks of a batch to the depth statistics."""
        self.update(
            trace, units.classes, units.losses, units.states, work, right=units.right, difficulty=units.difficulty
        )

    def summary(self) -> dict[str, Any]:
        """Return the content of the file `halting.json`, including advice if depth does not adapt."""
        summary = super().summary()
        if self.advice and "warning" in summary["adaptation"]:
            half = max(1, round(summary["max_depth"] / 2))
            summary["adaptation"]["advice"] = self.advice.replace("DEPTH", str(half))
        return summary


class ArchitectureStatistics:
    """Accumulator of the operation that an architecture search chose for each block, and of the compute per token."""

    def __init__(self, model: DepthModel, device: torch.device) -> None:
        self._model = model
        self._operations: list[list[float]] = []
        self._sums = torch.zeros(len(Work._fields) + 1, dtype=torch.float64, device=device)  # work, tokens

    def add(self, trace: DepthTrace, units: Units, work: Work) -> None:
        """Add the compute and the number of tokens of a batch, and store which operations the blocks have."""
        tokens = trace.executed.tokens
        assert trace.operations is not None
        assert tokens is not None
        if not self._operations:
            self._operations = trace.operations.weights.tolist()
        self._sums += torch.stack([*work, tokens.sum()]).double()

    def tensors(self) -> Sequence[Tensor]:
        """Return the accumulated sums as tensors, which the caller sums over processes in place."""
        return [self._sums]

    def summary(self) -> dict[str, Any]:
        """Return the description of the architecture (see `describe_architecture`) and the compute of a token."""
        temperature = self._model.temperature if isinstance(self._model, LearnsGates) else None
        described = describe_architecture(self._operations, temperature)
        *work, tokens = self._sums.tolist()
        return {
            "unit": "architecture",
            "max_depth": described["blocks"],
            "architecture": described,
            "cost": describe_work([total / tokens for total in work]),
        }


Statistics = UnitStatistics | ArchitectureStatistics


def build_statistics(model: DepthModel, classes: Sequence[str], difficulties: int, device: torch.device) -> Statistics:
    """Build the accumulator of depth statistics that fits the depth unit of a model, e.g. tokens or an architecture."""
    if model.depth_unit == "architecture":
        return ArchitectureStatistics(model, device)
    statistics = UnitStatistics(model.max_updates, classes, device, difficulties)
    if (family := families().get(model.config.model_type)) is not None:
        statistics.advice = family.advice
    return statistics


class Evaluation:
    """Evaluation of a model on one data set, which turns batches into metrics and a report.

    Args:
        model: Evaluated model.
        scorer: Scorer of the task.
        device: Device of the batches.
        wants_statistics: Whether to build a report.
        wants_states: Whether the report compares the states of consecutive iterations, if the model returns them.
        wants_rows: Whether the report holds the predictions of all examples.
    """

    def __init__(
        self,
        model: DepthModel,
        scorer: Scorer,
        device: torch.device,
        *,
        wants_statistics: bool,
        wants_states: bool = False,
        wants_rows: bool = False,
    ) -> None:
        self.model = model
        self.scorer = scorer
        self._reporter = TaskDepthReporter(model) if model.depth_unit == "task" else scorer
        self.wants_statistics = wants_statistics
        self.wants_rows = wants_rows
        self._losses = LossAccumulator()
        self._statistics = build_statistics(model, self._reporter.classes, self._reporter.difficulties, device)
        self._words = vocabulary_depths(scorer, model.depth_unit, device) if wants_statistics else None
        self._options = make_exit_kwargs(model)
        self._reads_states = wants_statistics and wants_states and model.shows_states
        if self._reads_states:
            self._options["output_hidden_states"] = True

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the keyword arguments that the model's forward pass needs in addition to the tensors of a batch."""
        return {**self._options, **self.scorer.options(batch)}

    def update(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Add a batch and the model's outputs to the scorer, the losses and the depth statistics."""
        self.scorer.record(batch, outputs)
        if outputs.loss_parts is not None:  # sentences without targets have no loss
            self._losses.add(outputs.loss_parts, self.model.count_targets(batch))
        if self.wants_statistics:
            units = self._reporter.units(batch, outputs)
            if self._reads_states:
                units = replace(units, states=outputs.hidden_states)
            self._statistics.add(outputs.trace, units, self.model.price(outputs.trace))
            self._reporter.add_examples(batch, outputs, units)
            if self._words is not None:
                self._words.add(batch, outputs.trace.updates)

    def merge(self) -> None:
        """Merge the sums and records of all processes. Every process must call it."""
        self.scorer.merge()
        self._losses.merge()
        all_reduce_sum(self._statistics.tensors())
        all_reduce_sum([] if self._words is None else self._words.tensors())

    def losses(self) -> dict[str, float]:
        """Return the mean of every loss part over the whole data set, by name."""
        return self._losses.means()

    def metrics(self) -> dict[str, float]:
        """Return the scalar metrics of the evaluation by name, among them `loss`."""
        return self.scorer.metrics(self.losses())

    def report(self) -> EvaluationReport | None:
        """Return the depth statistics and the scorer's results, or None if no report is wanted."""
        if not self.wants_statistics:
            return None
        words = {} if self._words is None else {"words": self._words.summary()}
        report = self._reporter.report(self._statistics.summary() | words)
        return replace(report, rows=self.scorer.rows()) if self.wants_rows else report
