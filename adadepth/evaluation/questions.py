"""The scorer of question answering: the best span of every question over all of its windows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adadepth.data import LabelledData
from adadepth.data.labelled.question_answering import CONTEXT, QUESTION, QuestionExamples
from adadepth.evaluation.scorer import EvaluationReport, Units
from adadepth.evaluation.sequences import LabelledScorer
from adadepth.measure.quality import answer_quality
from adadepth.measure.spans import SPAN_CLASSES, best_spans, span_classes
from adadepth.settings import QuestionConfig
from adadepth.system.processes import of_all_processes


class FoundAnswer(NamedTuple):
    """What windows say about a question.

    Attributes:
        score: Of the best span, the sum of its two logits; -inf where there is none.
        first: The first token of the best span in the context.
        last: The last token of the best span.
        null: The lowest score of no answer, the sum of the logits of [CLS].
        updates: Of all tokens of the windows together.
        tokens: The number of tokens of the windows.
    """

    score: float
    first: int
    last: int
    null: float
    updates: float
    tokens: float

    def joined(self, other: FoundAnswer) -> FoundAnswer:
        """What the windows behind both say; of spans with the same score the earlier one counts."""
        best = min(self, other, key=lambda found: (-found.score, found.first))
        return best._replace(
            null=min(self.null, other.null), updates=self.updates + other.updates, tokens=self.tokens + other.tokens
        )


class QuestionScorer(LabelledScorer):
    """Keeps the best span of every question, whatever the number and the length of its windows.

    Args:
        data: The task.
        examples: The evaluated windows.
        dataset: How spans are chosen.
    """

    classes = SPAN_CLASSES

    def __init__(self, data: LabelledData, examples: QuestionExamples, dataset: QuestionConfig) -> None:
        super().__init__(data)
        self.examples = examples
        self.dataset = dataset
        self._found: dict[int, FoundAnswer] = {}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Keep the best span of each window where it is the best one of its question so far."""
        scores, first, last = best_spans(
            outputs.start_logits,
            outputs.end_logits,
            batch["token_kind"] == CONTEXT,
            n_best=self.dataset.n_best,
            max_length=self.dataset.max_answer_length,
        )
        null = outputs.start_logits[:, 0].float() + outputs.end_logits[:, 0].float()
        shift, trace = batch["context_shift"], outputs.trace
        depths = ((trace.updates * trace.valid).sum(dim=1), trace.valid.sum(dim=1))
        columns = (batch["question"], scores, first + shift, last + shift, null, *depths)
        table = torch.stack([column.double() for column in columns], dim=1)  # copied to the host at once
        for question, score, start, end, *others in table.cpu().tolist():
            self._keep(int(question), FoundAnswer(score, int(start), int(end), *others))

    def _keep(self, question: int, found: FoundAnswer) -> None:
        self._found[question] = self._found[question].joined(found) if question in self._found else found

    def merge(self) -> None:
        """Bring together the spans of all processes, which may have had windows of the same question."""
        parts, self._found = of_all_processes(self._found), {}
        for question, found in (entry for part in parts for entry in part.items()):
            self._keep(question, found)

    def quality(self) -> dict[str, float]:
        """Exact match and F1 over the questions of the set."""
        questions = sorted(self._found)
        answers = [self.examples.text(question).answers for question in questions]
        return answer_quality(self.data.metrics, [self.answer(question) for question in questions], answers)

    def answer(self, question: int) -> str:
        """The predicted answer to a question of the set; empty where there is none."""
        found = self._found[question]
        threshold = self.dataset.null_score_threshold if self.dataset.unanswerable else math.inf
        if not math.isfinite(found.score) or found.null - found.score > threshold:
            return ""
        return self.examples.span_text(question, found.first, found.last)

    def rows(self) -> list[dict[str, Any]]:
        """A row a question: its answers, the predicted one, and the scores of that and of none."""
        return [self._row(question, found) for question, found in sorted(self._found.items())]

    def _row(self, question: int, found: FoundAnswer) -> dict[str, Any]:
        text = self.examples.text(question)
        return {
            "id": text.id,
            "label": list(text.answers),
            "prediction": self.answer(question),
            "score": found.score if math.isfinite(found.score) else None,
            "null_score": found.null,
            "updates": round(found.updates / found.tokens, 6),
            "exit_step": None,
        }

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Tokens of the question, of the context, and of the answer."""
        masks = span_classes(
            (outputs.start_logits, outputs.end_logits),
            (batch["start_positions"], batch["end_positions"]),
            batch["attention_mask"].bool(),
            batch["token_kind"] == QUESTION,
            batch["token_kind"] == CONTEXT,
        )
        return Units(masks)

    def show(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Offer the windows to the example sentences."""
        self.show_texts(batch, outputs.trace)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Depth by token class, example windows, and the predicted answers by the questions' ids."""
        found = super().report(statistics)
        found.predictions.update({self.examples.text(number).id: self.answer(number) for number in self._found})
        return found
