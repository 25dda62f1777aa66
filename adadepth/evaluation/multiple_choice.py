"""Evaluation of multiple choice, for which an example has one sequence per choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from adadepth.data.labelled.multiple_choice import BEGINNING, ENDING
from adadepth.evaluation.scorer import Units
from adadepth.evaluation.sequences import RecordingScorer
from adadepth.metrics.unit_classes import CHOICE_CLASSES, classify_choice_tokens


class ChoiceScorer(RecordingScorer):
    """Scorer of multiple choice: accuracy of the chosen ending, and depth of the tokens of all choices.

    Traces have one row per choice, (B·C, T).
    """

    classes = CHOICE_CLASSES

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Record the model's choice for each example, and the mean depth of the tokens of all choices."""
        examples, trace = len(batch["index"]), outputs.trace
        whole = replace(trace, updates=trace.updates.view(examples, -1), valid=trace.valid.view(examples, -1))
        flat = {**batch, "attention_mask": batch["attention_mask"].flatten(1)}
        self._recorder.add(flat, SimpleNamespace(logits=outputs.logits, trace=whole))

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Return attributes of tokens for depth statistics, in classes such as context and right choice."""
        masks = classify_choice_tokens(
            outputs.logits,
            batch["labels"],
            batch["attention_mask"].bool(),
            batch["token_text"] == BEGINNING,
            batch["token_text"] == ENDING,
        )
        return Units(masks)

    def add_examples(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Add every choice of a batch as a separate example sentence for the report."""
        choices = batch["input_ids"].shape[1]
        numbers = batch["index"][:, None] * choices + torch.arange(choices, device=batch["index"].device)
        rows = {name: batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask")}
        self.show_texts({**rows, "index": numbers.flatten()}, outputs.trace)
