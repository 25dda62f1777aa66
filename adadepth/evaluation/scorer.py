"""Base class of scorers, the task-specific part of an evaluation: metrics, depth classes and examples for reports.

Shape legend: U is the shape of the units in a trace's `updates`: (B, T) for tokens, (B,) for sequences or tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class EvaluationReport:
    """Results of an evaluation besides its scalar metrics.

    Attributes:
        statistics: Content of halting.json.
        sentences: Example sentences.
        exits: Figures of every step, if the model chooses an exit step for every example.
        grids: Example grids, if tokens are cells of a grid.
        predictions: Predictions by example id, if the task has ids.
        rows: Rows of all examples, if `wants_rows` is set.
    """

    statistics: dict[str, Any]
    sentences: list[dict[str, Any]] = field(default_factory=list)
    exits: dict[str, Any] | None = None
    grids: list[dict[str, Any]] = field(default_factory=list)
    predictions: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Units:
    """Attributes of a batch's tokens, sequences or tasks for depth statistics; see `HaltingStatistics.update`.

    Each tensor has the shape (U).

    Attributes:
        classes: Boolean masks by the names of the scorer's `classes`.
        losses: Loss of each unit, NaN if it has none.
        right: Correctness of the prediction of each unit: 1 if right, 0 if wrong, NaN if there is no prediction.
        difficulty: Difficulty of each unit, int64, negative if a unit has none.
        states: Hidden states before the first and after every update, each (U, H).
    """

    classes: Mapping[str, Tensor]
    losses: Tensor | None = None
    right: Tensor | None = None
    difficulty: Tensor | None = None
    states: Sequence[Tensor] | None = None


class Scorer:
    """Base class of scorers, which are the task-specific part of an evaluation: metrics, depth classes and examples.

    A task overrides the methods that it needs. For every batch, `options` and `record` are called, and for a report
    also `units` and `add_examples`. After the last batch, `merge`, `metrics` and `report` are called in this order.

    Attributes:
        classes: Names of the classes of units; `all` is one of them.
        difficulties: Number of difficulty levels, which are numbered from 0, or 0 if there are none.
        word_tokenizer: Tokenizer of the text, if words are ranked by their depth.
        tags: Names of the word classes, if `labels` holds the class of each word at its first token.
    """

    classes: tuple[str, ...] = ("all",)
    difficulties: int = 0
    word_tokenizer: PreTrainedTokenizerBase | None = None
    tags: tuple[str, ...] = ()

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments that the model's forward pass needs besides the tensors of a batch."""
        return {}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Record the model's predictions for a batch."""

    def merge(self) -> None:
        """Merge the recorded predictions of all processes. Every process must call it."""

    def metrics(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Return the scalar metrics of an evaluation by name, among them `loss` and the mean of every loss part."""
        return {"loss": sum(losses.values()), **losses, **self.quality()}

    def quality(self) -> dict[str, float]:
        """Return the metrics of the task, computed from the recorded predictions."""
        return {}

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Return attributes of a batch's tokens, sequences or tasks for depth statistics."""
        return Units({"all": torch.ones_like(outputs.trace.valid)})

    def find_word_starts(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Return a mask of first tokens of words, boolean (B, T), or None if the tokenizer marks them."""
        return None

    def add_examples(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Add examples of a batch to the samples that the report displays."""

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Return the report of the evaluation, which includes the depth statistics."""
        return EvaluationReport(statistics)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of results for each example of the data set; see `adadepth.evaluation.predictions`."""
        return []
