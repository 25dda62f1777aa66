"""The scorer of tagging: the tags of every word, those of sentences cut short included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from adadepth.analysis.measure.quality import tagging_quality
from adadepth.analysis.measure.scoring import token_losses
from adadepth.analysis.measure.sequence_classes import SequenceClasses
from adadepth.data import LabelledData
from adadepth.data.labelled.contract import TaggedExamples
from adadepth.evaluation.processes import of_all_processes
from adadepth.evaluation.scorer import Units
from adadepth.evaluation.sequences import SequenceScorer
from adadepth.families.contract import DepthModel
from adadepth.halting.trace import DepthTrace

_OUTSIDE = "O"  # what is predicted for a word that was cut off: no entity, and another tag than any part of speech


class TaggingScorer(SequenceScorer):
    """Keeps the predicted tag of every word; metrics compare them with all words of the set, also those cut off.

    Args:
        model: What is evaluated.
        data: The task.
        groups: The classes of the set.
        examples: The set.
    """

    def __init__(
        self, model: DepthModel, data: LabelledData, groups: SequenceClasses, examples: TaggedExamples
    ) -> None:
        super().__init__(model, data, groups)
        self.examples = examples
        self._tags: dict[int, list[int]] = {}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Keep the tags predicted at the first piece of each word."""
        predicted = outputs.logits.argmax(dim=-1).cpu().numpy()
        for number, tags in zip(batch["index"].tolist(), predicted, strict=True):
            self._tags[number] = tags[self.examples.first_pieces(number)].tolist()

    def merge(self) -> None:
        """Bring together the tags of all processes."""
        self._tags = {number: tags for part in of_all_processes(self._tags) for number, tags in part.items()}

    def quality(self) -> dict[str, float]:
        """The task's metrics over all words of the set."""
        names = self.data.labels
        predictions, labels = [], []
        for number in sorted(self._tags):
            gold = self.examples.gold(number)
            tags = [names[tag] for tag in self._tags[number]]
            labels.append([names[tag] for tag in gold])
            predictions.append(tags + [_OUTSIDE] * (len(gold) - len(tags)))
        return tagging_quality(self.data.metrics, predictions, labels)

    def unit_losses(self, trace: DepthTrace, logits: Tensor, labels: Tensor) -> Tensor | None:
        """The loss of every labelled token."""
        return token_losses(logits, labels)

    def show_sentences(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Sentences with their labels and predictions."""
        assert units.losses is not None, "evaluation sets are labelled"
        self.sentences.update(batch, outputs.trace, units.losses, outputs.logits.argmax(dim=-1))
