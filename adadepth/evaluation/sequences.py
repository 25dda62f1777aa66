"""Evaluation of labelled examples: metrics over a whole data set, and depth by class, length and difficulty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.config.kinds import PREDICTED
from adadepth.data import RunData
from adadepth.evaluation.exit_cost import measure_sequence_compute
from adadepth.evaluation.predictions import build_example_rows, merge_processes
from adadepth.evaluation.pretraining import classify_tokens
from adadepth.evaluation.scorer import EvaluationReport, Scorer, Units
from adadepth.halting.distribution import halting_distribution
from adadepth.halting.trace import DepthTrace
from adadepth.metrics.example_sentences import SentenceSampler
from adadepth.metrics.grid_examples import GridSampler
from adadepth.metrics.scoring import compute_example_losses, compute_quality, compute_rightness
from adadepth.metrics.step_records import StepRecorder, StepRecords
from adadepth.metrics.step_summary import summarise_steps
from adadepth.metrics.unit_classes import SequenceClasses, build_sequence_classes, expand_to_units
from adadepth.models.contract import DepthModel

_TOKEN_CLASSES = ("plain", "cls", "sep")  # further classes if tokens halt


class LabelledScorer(Scorer):
    """Base class of scorers for labelled examples, which collect example sentences for the report."""

    def __init__(self, data: RunData) -> None:
        self.data = data
        self.word_tokenizer = data.tokenizer if data.has_special_tokens else None  # generated tasks lack words
        decode_label = data.labels.__getitem__ if data.problem == "tagging" else None
        self.sentences = SentenceSampler(self._token, decode_label=decode_label)

    def _token(self, number: int) -> str:
        assert self.data.tokenizer is not None, "there are tokens"
        return str(self.data.tokenizer.convert_ids_to_tokens(number))

    def show_texts(self, batch: Mapping[str, Tensor], trace: DepthTrace, distribution: Tensor | None = None) -> None:
        """Add sequences of a batch to the example sentences of the report.

        Args:
            batch: Batch with `input_ids` and `attention_mask` (B, T), and `index` (B,).
            trace: Depths of tokens or sequences.
            distribution: Halting distribution of every sequence, (B, N), if sequences halt.
        """
        ids = batch["input_ids"]
        unknown = torch.full(ids.shape, math.nan, device=ids.device)
        self.sentences.update({**batch, "labels": ids}, trace, unknown, ids, distribution)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Return a report with depth by class, and example sentences."""
        return EvaluationReport(statistics, self.sentences.sentences())


class RecordingScorer(LabelledScorer):
    """Base class of scorers that record all predictions, for metrics over the whole data set."""

    def __init__(self, data: RunData) -> None:
        super().__init__(data)
        self._recorder = StepRecorder()
        self._records: StepRecords | None = None

    def merge(self) -> None:
        """Merge the recorded predictions of all processes."""
        self._records = merge_processes(self._recorder)

    def quality(self) -> dict[str, float]:
        """Return the metrics of the task over the whole data set, and their mean `score`."""
        records = self._records
        assert records is not None
        assert records.labels is not None, "evaluation sets are labelled"
        return compute_quality(records.logits, records.labels, self.data.problem, self.data.metrics)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of results for each example; see `build_example_rows`."""
        assert self._records is not None
        return build_example_rows(self._records, self.data.labels, self.data.problem)


class SequenceScorer(RecordingScorer):
    """Scorer of models that predict a class or a value for each sequence.

    Args:
        model: Evaluated model.
        data: Data of the task.
        groups: Classes of the set; see `sequence_classes`.
    """

    def __init__(self, model: DepthModel, data: RunData, groups: SequenceClasses) -> None:
        super().__init__(data)
        self.groups = groups
        self.difficulties = groups.difficulties
        self._model = model
        self._token_classes = _TOKEN_CLASSES if model.depth_unit == "token" and data.has_special_tokens else ()
        self.classes = (*groups.names, *self._token_classes)
        self._prior_facts: dict[str, Any] = {}
        self._grids = GridSampler(self._token, data.labels, data.picture or "cells")

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Record the logits of each example, and those after every step if the model returns them."""
        self._recorder.add(batch, outputs)
        if not self._prior_facts:
            self._prior_facts = self._model.prior_facts(outputs)

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Return attributes of sequences for depth statistics: label, correctness, length and difficulty.

        If tokens halt, they are also grouped by token class.
        """
        trace, labels, difficulty = outputs.trace, batch.get("labels"), batch.get("difficulty")
        mask = batch.get("attention_mask")
        lengths = mask.sum(dim=1) if mask is not None else torch.full_like(batch["index"], batch["inputs"].shape[1])
        masks = self.groups.masks(outputs.logits, labels, lengths, difficulty, valid=trace.valid)
        if self._token_classes:
            tokens = classify_tokens(batch, self.data.tokenizer)
            masks |= {name: tokens[name] for name in self._token_classes}
        if difficulty is not None:
            difficulty = expand_to_units(difficulty, trace.updates).expand(trace.updates.shape)
        losses = None if labels is None else self.unit_losses(trace, outputs.logits, labels)
        return Units(masks, losses, self._compute_rightness(trace, outputs.logits, labels), difficulty)

    def unit_losses(self, trace: DepthTrace, logits: Tensor, labels: Tensor) -> Tensor | None:
        """Return the loss of each sequence or token with a depth, or None if depths are of parts of an example."""
        return None if trace.unit == "token" else compute_example_losses(logits, labels, self.data.problem)

    def _compute_rightness(self, trace: DepthTrace, logits: Tensor, labels: Tensor | None) -> Tensor | None:
        """Return 1 for every sequence or token with a right prediction, and 0 for every other one.

        If tokens halt, the first token represents its sequence.
        """
        if labels is None or not self.data.labels:
            return None
        right = compute_rightness(logits, labels, self.data.problem)
        if right.shape == trace.updates.shape:
            return right
        first = torch.full_like(trace.updates, math.nan, dtype=torch.float32)
        first[:, 0] = right
        return first

    def add_examples(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Add a batch of token sequences to the examples of the report."""
        if "input_ids" not in batch:
            return
        if self.data.picture is not None:
            self._grids.update(batch, outputs.trace, outputs.logits.argmax(dim=-1))
        self.show_sentences(batch, outputs, units)

    def show_sentences(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Add a batch to the example sentences of the report, with labels and predictions."""
        logits = getattr(outputs, "halting_logits", None)  # models that halt sequences have them
        self.show_texts(batch, outputs.trace, None if logits is None else halting_distribution(logits, "none").pmf)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Return a report with depth by class, and examples.

        It has the figures of every step if all examples ran all steps.
        """
        exits = self.summarise_steps()
        return EvaluationReport(statistics, self.sentences.sentences(), exits, self._grids.grids())

    def summarise_steps(self) -> dict[str, Any] | None:
        """Return the figures of every step, or None if they cannot be computed or an example did not run all steps."""
        if not PREDICTED[self.data.problem].studies_exits or self._records is None or not self._records.ran_every_step:
            return None
        task: dict[str, Any] = {"problem": self.data.problem, "labels": self.data.labels, "metrics": self.data.metrics}
        exits = summarise_steps(self._records, **task, **self._prior_facts)
        for row, macs in zip(exits["steps"], measure_sequence_compute(self._model, self._records), strict=True):
            row["compute"] = macs
        return exits


def sequence_classes(dataset: Any, data: RunData) -> SequenceClasses:
    """Build the classes for depth statistics of a data set: labels, quartiles of length, and difficulty."""
    examples = [dataset[index] for index in range(len(dataset))]
    lengths = torch.tensor([len(example.get("input_ids", ())) for example in examples])
    has_unlabelled = data.problem == "tagging" and any((example["labels"] < 0).any() for example in examples)
    difficulty = _collect_difficulties(examples) if data.has_difficulty else None
    if data.problem == "puzzle":
        return build_sequence_classes((), lengths, difficulty, has_cells=True)
    names = () if data.problem == "multi_label" else data.labels  # a text may have several of them
    return build_sequence_classes(names, lengths, difficulty, has_unlabelled)


def _collect_difficulties(examples: Sequence[Mapping[str, Any]]) -> Tensor:
    """Return the difficulty of every example or token that has one, (U,) int64."""
    if "difficulty" in examples[0]:
        return torch.tensor([example["difficulty"] for example in examples])
    difficulties = np.concatenate([example["difficulties"] for example in examples])
    return torch.from_numpy(difficulties[difficulties >= 0])
