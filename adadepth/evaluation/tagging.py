"""Evaluation of tagging, with metrics over the tags of all words, also of words that were truncated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from adadepth.data import RunData
from adadepth.data.labelled.collators import TaggedExamples
from adadepth.evaluation.predictions import build_word_columns, build_word_row
from adadepth.evaluation.scorer import Units
from adadepth.evaluation.sequences import SequenceScorer
from adadepth.halting.trace import DepthTrace
from adadepth.metrics.scoring import token_losses
from adadepth.metrics.step_records import merge
from adadepth.metrics.step_summary import summarise_steps
from adadepth.metrics.task_metrics import score_tagging
from adadepth.metrics.unit_classes import SequenceClasses
from adadepth.models.contract import DepthModel
from adadepth.runtime.distributed import gather_from_processes

_Value = TypeVar("_Value")
OUTSIDE = "O"  # prediction for a truncated word: no entity, and no part of speech


class TaggingScorer(SequenceScorer):
    """Scorer of taggers. Its metrics include words that were truncated.

    Args:
        model: Evaluated model.
        data: Data of the task.
        groups: Classes of the set.
        examples: Evaluated set.
        wants_rows: Whether to record the figures of every word for `rows`.
    """

    def __init__(
        self,
        model: DepthModel,
        data: RunData,
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
        """Record the tag that the model predicts at the first token of each word.

        Predictions after every step are recorded, too, if texts have a number of loops.
        """
        if "text_loops" in batch and getattr(outputs, "step_logits", None) is not None:
            super().record(batch, outputs)
        numbers, predicted = batch["index"].tolist(), outputs.logits.argmax(dim=-1).cpu().numpy()
        firsts = [self.examples.find_first_pieces(number) for number in numbers]
        self._tags |= {n: row[first].tolist() for n, row, first in zip(numbers, predicted, firsts, strict=True)}
        if self.wants_rows:
            self._columns |= zip(numbers, build_word_columns(outputs, firsts), strict=True)

    def merge(self) -> None:
        """Merge the recorded tags of all processes."""
        self._tags = _join_processes(self._tags)
        self._columns = _join_processes(self._columns)
        if any(parts := gather_from_processes(self._recorder.parts())):
            self._records = merge(parts)

    def quality(self) -> dict[str, float]:
        """Return the metrics of the task over all words of the data set."""
        words = [self._name_tags(number) for number in sorted(self._tags)]
        return score_tagging(self.data.metrics, [tags for _, tags in words], [gold for gold, _ in words])

    def _name_tags(self, number: int) -> tuple[list[str], list[str]]:
        """Return the true tags and the predicted tags of all words of a sentence."""
        names = self.data.labels
        gold = [names[tag] for tag in self.examples.gold(number)]
        tags = [names[tag] for tag in self._tags[number]]
        return gold, tags + [OUTSIDE] * (len(gold) - len(tags))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of results for each sentence, with lists over its words.

        The id is the number of the row in the data.
        """
        return [
            build_word_row(self.examples.row_number(number), *self._name_tags(number), self._columns[number])
            for number in sorted(self._tags)
        ]

    def summarise_steps(self) -> dict[str, Any] | None:
        """Return the figures of every step over all labelled tokens, if texts have a number of loops."""
        if self._records is None or not self._records.ran_every_step:
            return None
        task: dict[str, Any] = {"problem": "classification", "labels": self.data.labels, "metrics": ("accuracy",)}
        return summarise_steps(self._records, **task, **self._prior_facts)

    def find_word_starts(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mask of the first tokens of words, boolean, (B, T)."""
        starts = torch.zeros(batch["input_ids"].shape, dtype=torch.bool)
        for row, number in zip(starts, batch["index"].tolist(), strict=True):
            row[torch.from_numpy(self.examples.find_first_pieces(number))] = True
        return starts.to(batch["input_ids"].device)

    def unit_losses(self, trace: DepthTrace, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Return the prediction loss of every token that has a label."""
        return token_losses(logits, labels)

    def show_sentences(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Add sentences with their labels and predictions to the examples of the report."""
        assert units.losses is not None, "evaluation sets are labelled"
        self.sentences.update(batch, outputs.trace, units.losses, outputs.logits.argmax(dim=-1))


def _join_processes(values: dict[int, _Value]) -> dict[int, _Value]:
    """Merge mappings by sentence number from all processes to one."""
    return {number: value for part in gather_from_processes(values) for number, value in part.items()}
