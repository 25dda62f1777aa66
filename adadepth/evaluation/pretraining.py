"""Evaluation of pretraining: accuracy for masked words and for sentence order, and depth of tokens by class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adadepth.evaluation.scorer import EvaluationReport, Scorer, Units
from adadepth.metrics.example_sentences import SentenceSampler
from adadepth.metrics.unit_classes import TOKEN_CLASSES, token_classes
from adadepth.runtime.distributed import all_reduce_sum


class PretrainingScorer(Scorer):
    """Scorer that counts a pretraining model's correct predictions on the device, and collects example sentences.

    Args:
        tokenizer: Tokenizer of the text.
        device: Device of the batches.
        exits: Number N of exits of a model that predicts words at each; its output has `step_losses` (P, N). 0: the
            model predicts words once.
    """

    classes = TOKEN_CLASSES

    def __init__(self, tokenizer: PreTrainedTokenizerBase, device: torch.device, exits: int = 0) -> None:
        self._tokenizer = self.word_tokenizer = tokenizer
        self._sums = torch.zeros(4, dtype=torch.int64, device=device)  # right and all words, right and all orders
        self._losses = torch.zeros(exits + 1, dtype=torch.float64, device=device)  # at the words' exits, at every exit
        self._sentences = SentenceSampler(decode=lambda number: str(tokenizer.convert_ids_to_tokens(number)))

    def record(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Count the correct predictions of masked words and of sentence orders in a batch."""
        words = batch["labels"][batch["labels"] >= 0]
        self._sums[:2] += _count_right(outputs.prediction_logits, words)
        if len(self._losses) > 1:
            losses = torch.cat([outputs.token_losses.unsqueeze(1), outputs.step_losses], dim=1)
            self._losses += losses.double().sum(dim=0)
        if "sop" in outputs.loss_parts:
            orders = batch["sentence_order_label"]
            self._sums[2:] += _count_right(outputs.sop_logits[orders >= 0], orders[orders >= 0])

    def merge(self) -> None:
        """Add the counts of correct predictions and the sums of losses of all processes."""
        all_reduce_sum([self._sums, self._losses])

    def metrics(self, losses: Mapping[str, float]) -> dict[str, float]:
        """Return the scalar metrics of an evaluation by name; see `Scorer.metrics`.

        If the model has exits, `mlm_loss` is the loss at the exits of the words, and `mlm_loss_step_n` that at exit n.
        The loss of training is a mean over all exits.
        """
        if len(self._losses) == 1:
            return super().metrics(losses)
        at_exit, *steps = (self._losses / self._sums[1].clamp(min=1)).tolist()
        by_step = {f"mlm_loss_step_{step}": loss for step, loss in enumerate(steps, start=1)}
        return super().metrics({**losses, "mlm_loss": at_exit}) | by_step

    def quality(self) -> dict[str, float]:
        """Return the metrics `mlm_accuracy` and `sop_accuracy`, if they have targets."""
        words, all_words, orders, all_orders = self._sums.tolist()
        counts = {"mlm_accuracy": (words, all_words), "sop_accuracy": (orders, all_orders)}
        return {name: right / count for name, (right, count) in counts.items() if count}

    def units(self, batch: Mapping[str, Tensor], outputs: Any) -> Units:
        """Return attributes of tokens for depth statistics, with the losses of predicted tokens."""
        masked = batch["labels"] >= 0
        losses = torch.full(masked.shape, math.nan, device=masked.device).masked_scatter(masked, outputs.token_losses)
        return Units(classify_tokens(batch, self._tokenizer), losses)

    def add_examples(self, batch: Mapping[str, Tensor], outputs: Any, units: Units) -> None:
        """Add sentences with the model's predictions for masked words to the examples of the report."""
        assert units.losses is not None
        labels = batch["labels"]
        predictions = labels.masked_scatter(labels >= 0, outputs.prediction_logits.argmax(dim=-1))
        self._sentences.update(batch, outputs.trace, units.losses, predictions)

    def report(self, statistics: dict[str, Any]) -> EvaluationReport:
        """Return a report with the depth by token class and example sentences."""
        return EvaluationReport(statistics, self._sentences.sentences())


def _count_right(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the number of correct predictions and the number of all predictions, (2,)."""
    right = (logits.argmax(dim=-1) == targets).sum()
    return torch.stack([right, right.new_tensor(len(targets))])


def classify_tokens(batch: Mapping[str, Tensor], tokenizer: Any) -> dict[str, Tensor]:
    """Return the classes of the tokens of a batch for depth statistics; see `token_classes`."""
    return token_classes(
        batch, cls_id=tokenizer.cls_token_id, sep_id=tokenizer.sep_token_id, mask_id=tokenizer.mask_token_id
    )
