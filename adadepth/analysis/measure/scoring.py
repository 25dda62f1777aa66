"""From logits to predictions, their losses and their quality, for classes and for values.

Shape legend: M examples, C classes (1 for a regression).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from adadepth.analysis.measure.quality import Problem, quality


def predictions(logits: Tensor, problem: Problem) -> Tensor:
    """The class of the highest logit, or the value: (M, C) to (M,)."""
    return logits.squeeze(-1) if problem == "regression" else logits.argmax(dim=-1)


def example_losses(logits: Tensor, labels: Tensor, problem: Problem) -> Tensor:
    """Cross-entropy in nats, or squared error: (M, C) and (M,) to (M,) float32."""
    if problem == "regression":
        return (logits.squeeze(-1) - labels.float()).square()
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every token in nats, NaN where its label is negative: (B, T, C) and (B, T) to (B, T) float32."""
    losses = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.clamp(min=0).flatten(), reduction="none")
    return losses.view(labels.shape).masked_fill(labels < 0, math.nan)


def rightness(logits: Tensor, labels: Tensor) -> Tensor:
    """1 where the class of the highest logit is the label, 0 where not, NaN where the label is negative; float32."""
    return (logits.argmax(dim=-1) == labels).float().masked_fill(labels < 0, math.nan)


def quality_of(logits: Tensor, labels: Tensor, problem: Problem, metrics: Sequence[str]) -> dict[str, float]:
    """The metrics of predictions from logits (M, C), and their mean as `score`."""
    return quality(metrics, predictions(logits, problem).numpy(), labels.numpy())
