"""The scorer of tagging: the tags of every word, those of sentences cut short included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from adadepth.data import LabelledData
from adadepth.data.labelled.contract import TaggedExamples
from adadepth.evaluation.predictions import word_columns, word_row
from adadepth.evaluation.scorer import Units
from adadepth.evaluation.sequences import SequenceScorer
from adadepth.families.contract import DepthModel
from adadepth.halting.trace import DepthTrace
from adadepth.measure.classes import SequenceClasses
from adadepth.measure.quality import tagging_quality
from adadepth.measure.scoring import token_losses
from adadepth.system.processes import of_all_processes

_Kept = TypeVar("_Kept")
_OUTSIDE = "O"  # what is predicted for a word that was cut off: no entity, and another tag than any part of speech


class TaggingScorer(SequenceScorer):
    """Keeps the predicted tag of every word; metrics compare them with all words of the set, also those cut off.

    Args:
        model: What is evaluated.
        data: The task.
        groups: The classes of the set.
        examples: The set.
        wants_rows: Whether to keep what rows tell of every word beside its tag.
    """

    def __init__(
        self,
        model: DepthModel,
        data: LabelledData,
        groups: SequenceClasses,
        examples: TaggedExamples,
        *,
        wants_rows: bool = False,
    ) -> None:
        super().__init__(model, data, groups)
        self.examples = examples
        self.tags = data.labels
        self.wants_rows = wants_rows
        self._tags: dict[int, list[int]] = {}
        self._columns: dict[int, dict[str, Any]] = {}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Keep the tags predicted at the first piece of each word."""
        numbers, predicted = batch["index"].tolist(), outputs.logits.argmax(dim=-1).cpu().numpy()
        firsts = [self.examples.first_pieces(number) for number in numbers]
        self._tags |= {n: row[first].tolist() for n, row, first in zip(numbers, predicted, firsts, strict=True)}
        if self.wants_rows:
            self._columns |= zip(numbers, word_columns(outputs, firsts), strict=True)

    def merge(self) -> None:
        """Bring together the tags of all processes."""
        self._tags = _joined(self._tags)
        self._columns = _joined(self._columns)

    def quality(self) -> dict[str, float]:
        """The task's metrics over all words of the set."""
        words = [self._words(number) for number in sorted(self._tags)]
        return tagging_quality(self.data.metrics, [tags for _, tags in words], [gold for gold, _ in words])

    def _words(self, number: int) -> tuple[list[str], list[str]]:
        """The tags of all words of a sentence, and those predicted."""
        names = self.data.labels
        gold = [names[tag] for tag in self.examples.gold(number)]
        tags = [names[tag] for tag in self._tags[number]]
        return gold, tags + [_OUTSIDE] * (len(gold) - len(tags))

    def rows(self) -> list[dict[str, Any]]:
        """A row a sentence, with lists over its words; its id is the number of its row in the data."""
        return [
            word_row(self.examples.row_number(number), *self._words(number), self._columns[number])
            for number in sorted(self._tags)
        ]

    def word_starts(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The first pieces of the words that were tagged."""
        starts = torch.zeros(batch["input_ids"].shape, dtype=torch.bool)
        for row, number in zip(starts, batch["index"].tolist(), strict=True):
            row[torch.from_numpy(self.examples.first_pieces(number))] = True
        return starts.to(batch["input_ids"].device)

    def unit_losses(self, trace: DepthTrace, logits: Tensor, labels: Tensor) -> Tensor | None:
        """The loss of every labelled token."""
        return token_losses(logits, labels)

    def show_sentences(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Sentences with their labels and predictions."""
        assert units.losses is not None, "evaluation sets are labelled"
        self.sentences.update(batch, outputs.trace, units.losses, outputs.logits.argmax(dim=-1))


def _joined(found: dict[int, _Kept]) -> dict[int, _Kept]:
    """What all processes have found, by sentence."""
    return {number: kept for part in of_all_processes(found) for number, kept in part.items()}
