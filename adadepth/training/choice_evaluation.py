"""Evaluation of multiple choice, where an example is as many sequences as there are choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from adadepth.analysis.measure.choice_classes import CHOICE_CLASSES, choice_classes
from adadepth.analysis.measure.sequence_classes import SequenceClasses
from adadepth.analysis.measure.statistics import HaltingStatistics
from adadepth.data.labelled.multiple_choice import CONTEXT, ENDING
from adadepth.training.labelled_evaluation import LabelledEvaluation, max_updates


class ChoiceEvaluation(LabelledEvaluation):
    """The accuracy of choices, and the depth of their tokens. Traces have a row a choice, (B·C, T).

    Args:
        **options: Of `LabelledEvaluation`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(classes=SequenceClasses(()), **options)
        self._statistics = HaltingStatistics(max_updates(self.model), CHOICE_CLASSES, options["device"])

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Keep the choice of each example, and the mean depth of the tokens of all its choices."""
        examples, trace = len(batch["index"]), outputs.trace
        whole = replace(trace, updates=trace.updates.view(examples, -1), valid=trace.valid.view(examples, -1))
        flat = {**batch, "attention_mask": batch["attention_mask"].flatten(1)}
        self._recorder.add(flat, SimpleNamespace(logits=outputs.logits, trace=whole))

    def _update_statistics(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        masks = choice_classes(
            outputs.logits,
            batch["labels"],
            batch["attention_mask"].bool(),
            batch["token_text"] == CONTEXT,
            batch["token_text"] == ENDING,
        )
        self._statistics.update(outputs.trace, masks, work=self.model.price(outputs.trace))
        choices = batch["input_ids"].shape[1]
        numbers = batch["index"][:, None] * choices + torch.arange(choices, device=batch["index"].device)
        rows = {name: batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask")}
        self.show({**rows, "index": numbers.flatten()}, outputs.trace)
