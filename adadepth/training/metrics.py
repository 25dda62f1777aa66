"""Streaming metrics: sums on the device, added over batches and processes, divided once at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class PretrainingMetrics:
    """Losses and accuracies of masked-language-model and sentence-order predictions.

    All are means over targets, never means of batch means, so batch size and number of processes cannot change them.
    """

    _NAMES = ("mlm_loss", "mlm_correct", "mlm_count", "sop_loss", "sop_correct", "sop_count", "ponder", "ponder_count",
              "readouts", "readouts_count")  # fmt: skip

    def __init__(self, act_penalty: float, device: torch.device) -> None:
        self.act_penalty = act_penalty
        self.sums = torch.zeros(len(self._NAMES), dtype=torch.float64, device=device)

    def update(self, batch: Mapping[str, Tensor], outputs: Any, counts: Mapping[str, Tensor]) -> None:
        """Add a batch. `counts` are the model's targets of that batch."""
        added = dict.fromkeys(self._NAMES, torch.zeros((), dtype=torch.float64, device=self.sums.device))
        targets = batch["labels"][batch["labels"] >= 0]
        added["mlm_loss"] = outputs.token_losses.double().sum()
        added["mlm_correct"] = (outputs.prediction_logits.argmax(dim=-1) == targets).sum()
        added["mlm_count"] = counts["mlm"]
        if "sop" in counts:
            labels = batch["sentence_order_label"]
            labelled = labels >= 0
            logits = outputs.sop_logits.float()[labelled]
            added["sop_loss"] = nn.functional.cross_entropy(logits, labels[labelled], reduction="sum")
            added["sop_correct"] = (logits.argmax(dim=-1) == labels[labelled]).sum()
            added["sop_count"] = counts["sop"]
        added["ponder"] = (outputs.trace.updates + outputs.trace.halting.remainders).double().sum()
        added["ponder_count"] = counts["ponder"]
        if "readouts" in counts:
            added["readouts"] = outputs.loss_parts["readouts"].double() * counts["readouts"]
            added["readouts_count"] = counts["readouts"]
        self.sums += torch.stack([added[name].double() for name in self._NAMES])

    def tensors(self) -> list[Tensor]:
        """The sums, which add up over processes."""
        return [self.sums]

    def compute(self) -> dict[str, float]:
        """Means by name; a metric without targets is absent."""
        sums = dict(zip(self._NAMES, self.sums.tolist(), strict=True))
        metrics: dict[str, float] = {}
        for part in ("mlm", "sop"):
            if count := sums[f"{part}_count"]:
                metrics[f"{part}_loss"] = sums[f"{part}_loss"] / count
                metrics[f"{part}_accuracy"] = sums[f"{part}_correct"] / count
        metrics["ponder_loss"] = self.act_penalty * sums["ponder"] / sums["ponder_count"]
        if count := sums["readouts_count"]:
            metrics["readouts_loss"] = sums["readouts"] / count
        parts = ("mlm_loss", "sop_loss", "ponder_loss", "readouts_loss")
        metrics["loss"] = sum(metrics[name] for name in parts if name in metrics)
        return metrics
