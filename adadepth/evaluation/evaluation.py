"""The evaluation of a set, whatever the family and the task: loss parts, depths, and what the task's scorer keeps.

A model says what its loss is made of (`loss_parts`, `count_targets`) and how deep its units were (`trace`, `price`).
What neither of them knows, a `Scorer` does: which numbers the task's metrics need, into which classes units are sorted,
what a report shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from adadepth.evaluation.losses import LossSums
from adadepth.evaluation.one_depth import OneDepth
from adadepth.evaluation.processes import add_over_processes
from adadepth.evaluation.records import seeded_exits
from adadepth.evaluation.scorer import EvaluationReport, Scorer
from adadepth.evaluation.statistics import statistics_of
from adadepth.evaluation.vocabulary import vocabulary_depths
from adadepth.families.contract import DepthModel, ShowsStates


class Evaluation:
    """One pass over one set: batches in, metrics and a report out.

    Args:
        model: What is evaluated.
        scorer: The task's.
        device: Of the batches.
        wants_statistics: Whether there is to be a report.
        wants_states: Whether it compares the states of consecutive iterations, of a model that shows them.
        wants_rows: Whether it holds the predictions of all examples.
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
        self._reporter = OneDepth(model) if model.depth_unit == "task" else scorer
        self.wants_statistics = wants_statistics
        self.wants_rows = wants_rows
        self._losses = LossSums()
        self._statistics = statistics_of(model, self._reporter.classes, self._reporter.difficulties, device)
        self._words = vocabulary_depths(scorer, model.depth_unit, device) if wants_statistics else None
        self._options = seeded_exits(model)
        shows_states = isinstance(model, ShowsStates) and model.shows_states
        self._reads_states = wants_statistics and wants_states and shows_states
        if self._reads_states:
            self._options["output_hidden_states"] = True

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Further arguments of the model's forward pass of a batch."""
        return {**self._options, **self.scorer.options(batch)}

    def update(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Add a batch."""
        self.scorer.record(batch, outputs)
        if outputs.loss_parts is not None:  # sentences without targets have no loss
            self._losses.add(outputs.loss_parts, self.model.count_targets(batch))
        if self.wants_statistics:
            units = self._reporter.units(batch, outputs)
            if self._reads_states:
                units = replace(units, states=outputs.hidden_states)
            self._statistics.add(outputs.trace, units, self.model.price(outputs.trace))
            self._reporter.show(batch, outputs, units)
            if self._words is not None:
                self._words.add(batch, outputs.trace.updates)

    def merge(self) -> None:
        """Add what the other processes have; every process calls it."""
        self.scorer.merge()
        self._losses.merge()
        add_over_processes(self._statistics.tensors())
        add_over_processes([] if self._words is None else self._words.tensors())

    def losses(self) -> dict[str, float]:
        """Means of the loss parts over the whole set."""
        return self._losses.means()

    def metrics(self) -> dict[str, float]:
        """Scalar metrics by name; one of them is `loss`."""
        return self.scorer.metrics(self.losses())

    def report(self) -> EvaluationReport | None:
        """Statistics of depth and the scorer's part, if they were wanted."""
        if not self.wants_statistics:
            return None
        words = {} if self._words is None else {"words": self._words.summary()}
        report = self._reporter.report(self._statistics.summary() | words)
        return replace(report, rows=self.scorer.rows()) if self.wants_rows else report
