"""Evaluation of tagging: the tags of every word, those of sentences cut short included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from accelerate.utils import gather_object
from torch import Tensor

from adadepth.analysis.measure.quality import tagging_quality
from adadepth.training.labelled_evaluation import LabelledEvaluation

_OUTSIDE = "O"  # what is predicted for a word that was cut off: no entity, and another tag than any part of speech


class TaggingEvaluation(LabelledEvaluation):
    """Keeps the predicted tag of every word; metrics compare them with all words of the set, also those cut off.

    Args:
        gold: From an example's `index` to the tags of all its words, as class numbers.
        **options: Of `LabelledEvaluation`.
    """

    def __init__(self, gold: Callable[[int], Sequence[int]], **options: Any) -> None:
        super().__init__(**options)
        self.gold = gold
        self._tags: dict[int, list[int]] = {}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Keep the tags predicted at the first piece of each word."""
        labels, predicted = batch["labels"].cpu(), outputs.logits.argmax(dim=-1).cpu()
        for number, row, tags in zip(batch["index"].tolist(), labels, predicted, strict=True):
            self._tags[number] = tags[row >= 0].tolist()

    def merge_records(self) -> None:
        """Bring together the tags of all processes."""
        if dist.is_available() and dist.is_initialized():
            self._tags = {number: tags for part in gather_object([self._tags]) for number, tags in part.items()}

    def quality(self) -> dict[str, float]:
        """The task's metrics over all words of the set."""
        names = self.data.labels
        predictions, labels = [], []
        for number in sorted(self._tags):
            gold = self.gold(number)
            tags = [names[tag] for tag in self._tags[number]]
            labels.append([names[tag] for tag in gold])
            predictions.append(tags + [_OUTSIDE] * (len(gold) - len(tags)))
        return tagging_quality(self.data.metrics, predictions, labels)
