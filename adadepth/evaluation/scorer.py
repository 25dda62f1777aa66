"""What a task adds to an evaluation.

Shape legend: U units, in the shape of a trace's `updates`: (B, T) tokens, (B,) sequences or tasks.
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
    """What an evaluation found besides its scalar metrics.

    `exits` where a model decides a step for every example, `grids` where tokens are cells, `predictions` by an
    example's id where the task has ids, `rows` of all examples where they were asked for.
    """

    statistics: dict[str, Any]
    sentences: list[dict[str, Any]] = field(default_factory=list)
    exits: dict[str, Any] | None = None
    grids: list[dict[str, Any]] = field(default_factory=list)
    predictions: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Units:
    """What is known of a batch's units beside their depth, each (U); see `HaltingStatistics.update`.

    Attributes:
        classes: Boolean masks by the names of the scorer's `classes`.
        losses: Of each unit, NaN where it has none.
        right: 1 or 0 for its prediction, NaN where nothing is predicted.
        difficulty: int64, negative where it has none.
        states: Hidden states before the first and after every iteration, each (U, H).
    """

    classes: Mapping[str, Tensor]
    losses: Tensor | None = None
    right: Tensor | None = None
    difficulty: Tensor | None = None
    states: Sequence[Tensor] | None = None


class Scorer:
    """What is kept of a batch, the metrics of the whole set, the classes of units, what the report shows.

    A task overrides what it has. The order of calls is `options`, `record`, `units`, `show` for every batch, the last
    two only where a report is wanted; `merge`; `metrics`; `report`.

    Attributes:
        classes: Names of the classes of units; `all` is one of them.
        difficulties: Units have difficulties 0 to this, exclusive; 0: none is known.
        words_of: Tokenizer of the text, where its words are ranked by their depth.
        tags: Names of the classes of words, where `labels` has that of each at its first token.
    """

    classes: tuple[str, ...] = ("all",)
    difficulties: int = 0
    words_of: PreTrainedTokenizerBase | None = None
    tags: tuple[str, ...] = ()

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Further arguments of the model's forward pass of a batch."""
        return {}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Keep what the metrics of the whole set need of a batch."""

    def merge(self) -> None:
        """Bring together what all processes have recorded; each of them calls it."""

    def metrics(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Scalar metrics by name, `loss` among them, with the mean loss parts of the set."""
        return {"loss": sum(losses.values()), **losses, **self.quality()}

    def quality(self) -> dict[str, float]:
        """The task's metrics of what was recorded."""
        return {}

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """What statistics are told of a batch's units."""
        return Units({"all": torch.ones_like(outputs.trace.valid)})

    def word_starts(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Whether a word of the data begins at a token, boolean, (B, T); None: its tokenizer knows."""
        return None

    def show(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Offer a batch to the examples that a report shows."""

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """The report, around the statistics of the set."""
        return EvaluationReport(statistics)

    def rows(self) -> list[dict[str, Any]]:
        """What was predicted of every example of the set; see `adadepth.evaluation.predictions`."""
        return []
