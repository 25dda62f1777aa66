"""Evaluation of extractive question answering: the best answer span of a question over all its windows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adadepth.config import QuestionConfig
from adadepth.data import RunData
from adadepth.data.labelled.question_answering import CONTEXT, QUESTION, QuestionExamples
from adadepth.evaluation.scorer import EvaluationReport, Units
from adadepth.evaluation.sequences import LabelledScorer
from adadepth.metrics.spans import SPAN_CLASSES, classify_span_tokens, find_best_spans
from adadepth.metrics.task_metrics import score_answers
from adadepth.runtime.distributed import gather_from_processes


class AnswerPrediction(NamedTuple):
    """Predicted answer to a question over the windows of its context that were read so far.

    Attributes:
        score: Score of the best span, the sum of its start and end logits, or -inf if there is no span.
        first: First token of the best span in the context.
        last: Last token of the best span.
        null: Score of "no answer", the sum of the two logits of [CLS]; the lowest over windows.
        updates: Sum of the updates of all tokens of the windows.
        tokens: Number of tokens of the windows.
    """

    score: float
    first: int
    last: int
    null: float
    updates: float
    tokens: float

    def merge(self, other: AnswerPrediction) -> AnswerPrediction:
        """Merge the predicted answers of two sets of windows: the higher score wins, then the earlier span."""
        best = min(self, other, key=lambda answer: (-answer.score, answer.first))
        return best._replace(
            null=min(self.null, other.null), updates=self.updates + other.updates, tokens=self.tokens + other.tokens
        )


class QuestionScorer(LabelledScorer):
    """Scorer that selects the best answer span of each question over all windows of its context.

    Args:
        data: Data of the task.
        examples: Evaluated windows.
        dataset: Dataset settings, which configure the selection of spans.
    """

    classes = SPAN_CLASSES

    def __init__(self, data: RunData, examples: QuestionExamples, dataset: QuestionConfig) -> None:
        super().__init__(data)
        self.examples = examples
        self.dataset = dataset
        self._answers: dict[int, AnswerPrediction] = {}

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Record the best answer span in each window of a batch."""
        scores, first, last = find_best_spans(
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
        for question, score, start, end, *rest in table.cpu().tolist():
            self._add(int(question), AnswerPrediction(score, int(start), int(end), *rest))

    def _add(self, question: int, answer: AnswerPrediction) -> None:
        earlier = self._answers.get(question)
        self._answers[question] = answer if earlier is None else earlier.merge(answer)

    def merge(self) -> None:
        """Merge the answer spans of all processes, because windows of one question may be on several processes."""
        parts, self._answers = gather_from_processes(self._answers), {}
        for question, answer in (entry for part in parts for entry in part.items()):
            self._add(question, answer)

    def quality(self) -> dict[str, float]:
        """Return exact match and F1 over all questions."""
        questions = sorted(self._answers)
        answers = [self.examples.text(question).answers for question in questions]
        return score_answers(self.data.metrics, [self.answer(question) for question in questions], answers)

    def answer(self, question: int) -> str:
        """Return the predicted answer to a question, or an empty text if the model predicts that there is none."""
        answer = self._answers[question]
        threshold = self.dataset.null_score_threshold if self.dataset.unanswerable else math.inf
        if not math.isfinite(answer.score) or answer.null - answer.score > threshold:
            return ""
        return self.examples.span_text(question, answer.first, answer.last)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of results for each question.

        It has the right answers, the prediction, and the scores of the prediction and of no answer.
        """
        return [self._build_row(question, answer) for question, answer in sorted(self._answers.items())]

    def _build_row(self, question: int, answer: AnswerPrediction) -> dict[str, Any]:
        text = self.examples.text(question)
        return {
            "id": text.id,
            "label": list(text.answers),
            "prediction": self.answer(question),
            "score": answer.score if math.isfinite(answer.score) else None,
            "null_score": answer.null,
            "updates": round(answer.updates / answer.tokens, 6),
            "exit_step": None,
        }

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Return attributes of tokens for depth statistics, in the classes question, context and answer."""
        masks = classify_span_tokens(
            (outputs.start_logits, outputs.end_logits),
            (batch["start_positions"], batch["end_positions"]),
            batch["attention_mask"].bool(),
            batch["token_kind"] == QUESTION,
            batch["token_kind"] == CONTEXT,
        )
        return Units(masks)

    def add_examples(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Add windows of a batch to the example sentences of the report."""
        self.show_texts(batch, outputs.trace)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Return the report: depth by token class, example windows, and predicted answers by question id."""
        predictions = {self.examples.text(number).id: self.answer(number) for number in self._answers}
        return replace(super().report(statistics), predictions=predictions)
