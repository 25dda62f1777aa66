"""The scorer of pretraining: accuracies of masked words and of sentence order, and every token's depth by class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adadepth.evaluation.scorer import EvaluationReport, Scorer, Units
from adadepth.measure.classes import TOKEN_CLASSES, token_classes
from adadepth.measure.sentences import SentenceSampler
from adadepth.system.processes import add_over_processes


class PretrainingScorer(Scorer):
    """Keeps four sums on the device and a few sentences.

    Args:
        tokenizer: Of the text.
        device: Of the batches.
    """

    classes = TOKEN_CLASSES

    def __init__(self, tokenizer: PreTrainedTokenizerBase, device: torch.device) -> None:
        self._tokenizer = self.words_of = tokenizer
        self._sums = torch.zeros(4, dtype=torch.int64, device=device)  # right and all: words, then orders
        self._sentences = SentenceSampler(decode=lambda number: str(tokenizer.convert_ids_to_tokens(number)))

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Count the right predictions."""
        words = batch["labels"][batch["labels"] >= 0]
        self._sums[:2] += _right_of(outputs.prediction_logits, words)
        if "sop" in outputs.loss_parts:
            orders = batch["sentence_order_label"]
            self._sums[2:] += _right_of(outputs.sop_logits[orders >= 0], orders[orders >= 0])

    def merge(self) -> None:
        """Add the counts of all processes."""
        add_over_processes([self._sums])

    def quality(self) -> dict[str, float]:
        """`mlm_accuracy` and `sop_accuracy`; one without targets is absent."""
        words, all_words, orders, all_orders = self._sums.tolist()
        found = {"mlm_accuracy": (words, all_words), "sop_accuracy": (orders, all_orders)}
        return {name: right / count for name, (right, count) in found.items() if count}

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Tokens by what they are, with the losses of those that are predicted."""
        chosen = batch["labels"] >= 0
        losses = torch.full(chosen.shape, math.nan, device=chosen.device).masked_scatter(chosen, outputs.token_losses)
        return Units(special_token_classes(batch, self._tokenizer), losses)

    def show(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Sentences with the words that were predicted."""
        assert units.losses is not None
        labels = batch["labels"]
        predictions = labels.masked_scatter(labels >= 0, outputs.prediction_logits.argmax(dim=-1))
        self._sentences.update(batch, outputs.trace, units.losses, predictions)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Depth by token class, and example sentences."""
        return EvaluationReport(statistics, self._sentences.sentences())


def _right_of(logits: Tensor, targets: Tensor) -> Tensor:
    """How many predictions are right, and of how many, (2,)."""
    right = (logits.argmax(dim=-1) == targets).sum()
    return torch.stack([right, right.new_tensor(len(targets))])


def special_token_classes(batch: Mapping[str, Tensor], tokenizer: Any) -> dict[str, Tensor]:
    """`token_classes` with the ids of a tokenizer."""
    return token_classes(
        batch, cls_id=tokenizer.cls_token_id, sep_id=tokenizer.sep_token_id, mask_id=tokenizer.mask_token_id
    )
