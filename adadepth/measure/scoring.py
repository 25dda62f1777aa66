"""From logits to predictions, their losses and their quality, for classes and for values.

Shape legend: M examples, C classes (1 for a regression), L cells of a puzzle, whose logits are (M, L, C).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from adadepth.measure.quality import quality
from adadepth.settings.kinds import Problem


def predictions(logits: Tensor, problem: Problem) -> Tensor:
    """The class of the highest logit, or the value: (M, C) to (M,), or cell by cell; several labels: which, (M, C)."""
    if problem == "multi_label":
        return (logits > 0).long()
    return logits.squeeze(-1) if problem == "regression" else logits.argmax(dim=-1)


def example_losses(logits: Tensor, labels: Tensor, problem: Problem) -> Tensor:
    """Cross-entropy in nats, the mean over a puzzle's labelled cells or over several labels, or squared error.

    (M,) float32, of logits of any precision: in bfloat16 a loss between 4 and 8 could only be a multiple of 1/32.
    """
    logits = logits.float()
    if problem == "puzzle":
        return token_losses(logits, labels).nanmean(dim=1)
    if problem == "multi_label":
        return nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=-1)
    if problem == "regression":
        return (logits.squeeze(-1) - labels.float()).square()
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every token in nats, NaN where its label is negative: (B, T, C) and (B, T) to (B, T) float32."""
    losses = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.clamp(min=0).flatten(), reduction="none")
    return losses.view(labels.shape).masked_fill(labels < 0, math.nan)


def rightness(logits: Tensor, labels: Tensor, problem: Problem = "classification") -> Tensor:
    """1 where what is predicted is the label, 0 where not, NaN where the label is negative; float32."""
    if problem == "multi_label":
        return (predictions(logits, problem) == labels).all(dim=-1).float()
    return (logits.argmax(dim=-1) == labels).float().masked_fill(labels < 0, math.nan)


def is_right(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether a prediction is right, of a puzzle whether all its labelled cells are; boolean.

    Args:
        logits: (M, C), of puzzles (M, L, C); or of every step, (M, N, C) and (M, N, L, C).
        labels: (M,), of puzzles (M, L).

    Returns:
        (M,), or (M, N) of every step.
    """
    wanted = labels if logits.dim() == labels.dim() + 1 else labels.unsqueeze(1)
    right = logits.argmax(dim=-1) == wanted
    return right if labels.dim() == 1 else (right | (wanted < 0)).all(dim=-1)


def quality_of(logits: Tensor, labels: Tensor, problem: Problem, metrics: Sequence[str]) -> dict[str, float]:
    """The metrics of predictions from logits (M, C), and their mean as `score`; of a text `loss`, and minus it."""
    if problem == "language_model":
        loss = float(example_losses(logits, labels, problem).double().mean())
        return {"loss": loss, "score": -loss}
    return quality(metrics, predictions(logits, problem).numpy(), labels.numpy())
