"""What an evaluation keeps while it runs, by task: the trainer feeds batches, the task decides what becomes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from adadepth.analysis.measure.sentences import SentenceSampler
from adadepth.analysis.measure.statistics import HaltingStatistics
from adadepth.analysis.measure.token_classes import TOKEN_CLASSES, token_classes
from adadepth.training.metrics import PretrainingMetrics


@dataclass(frozen=True)
class EvaluationReport:
    """What an evaluation found besides its scalar metrics.

    `exits` where a model decides a step for every example, `grids` where tokens are cells, `predictions` by an
    example's id where the task has ids.
    """

    statistics: dict[str, Any]
    sentences: list[dict[str, Any]] = field(default_factory=list)
    exits: dict[str, Any] | None = None
    grids: list[dict[str, Any]] = field(default_factory=list)
    predictions: dict[str, str] = field(default_factory=dict)


class Evaluation(Protocol):
    """The evaluation of one set."""

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Further arguments of the model's forward pass of a batch."""

    def update(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Add a batch."""

    def merge(self) -> None:
        """Add what the other processes have; every process calls it."""

    def metrics(self) -> dict[str, float]:
        """Scalar metrics by name; one of them is `loss`."""

    def report(self) -> EvaluationReport | None:
        """Statistics of depth, if they were wanted."""


class PretrainingEvaluation:
    """Keeps sums and histograms on the device and a few sentences, so memory does not grow with the set."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        device: torch.device,
        *,
        wants_statistics: bool,
        is_main: bool,
    ) -> None:
        self.model: Any = model
        self.tokenizer = tokenizer
        self.wants_statistics = wants_statistics
        self.is_main = is_main
        self._metrics = PretrainingMetrics(self.model.config.act_penalty, device)
        self._statistics = HaltingStatistics(self.model.config.num_hidden_layers, TOKEN_CLASSES, device)
        self._sentences = SentenceSampler(decode=lambda number: str(tokenizer.convert_ids_to_tokens(number)))

    def options(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Statistics compare the states of consecutive iterations."""
        return {"output_hidden_states": self.wants_statistics}

    def update(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Add a batch's losses, accuracies and depths."""
        self._metrics.update(batch, outputs, self.model.count_targets(batch))
        if not self.wants_statistics:
            return
        chosen = batch["labels"] >= 0
        losses = torch.full(chosen.shape, math.nan, device=chosen.device).masked_scatter(chosen, outputs.token_losses)
        classes = special_token_classes(batch, self.tokenizer)
        work = self.model.price(outputs.trace)
        self._statistics.update(outputs.trace, classes, losses, outputs.hidden_states, work)
        if self.is_main:
            predictions = batch["labels"].masked_scatter(chosen, outputs.prediction_logits.argmax(dim=-1))
            self._sentences.update(batch, outputs.trace, losses, predictions)

    def merge(self) -> None:
        """Add the sums of all processes."""
        add_over_processes([*self._metrics.tensors(), *self._statistics.tensors()])

    def metrics(self) -> dict[str, float]:
        """See `PretrainingMetrics`."""
        return self._metrics.compute()

    def report(self) -> EvaluationReport | None:
        """Depth by token class, and example sentences."""
        if not self.wants_statistics:
            return None
        return EvaluationReport(self._statistics.summary(), self._sentences.sentences())


def special_token_classes(batch: Mapping[str, Tensor], tokenizer: Any) -> dict[str, Tensor]:
    """`token_classes` with the ids of a tokenizer."""
    return token_classes(
        batch, cls_id=tokenizer.cls_token_id, sep_id=tokenizer.sep_token_id, mask_id=tokenizer.mask_token_id
    )


def add_over_processes(tensors: list[Tensor]) -> None:
    """Replace each tensor by its sum over processes, in place."""
    if dist.is_available() and dist.is_initialized():
        for tensor in tensors:
            dist.all_reduce(tensor)
