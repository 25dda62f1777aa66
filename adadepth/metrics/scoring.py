"""Predictions, losses and metrics that are computed from logits, for classes and for values.

Shape legend: M examples, C classes (1 for a regression), L cells of a puzzle. The logits of puzzles are (M, L, C).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from adadepth.config.kinds import Problem
from adadepth.metrics.task_metrics import quality


def predictions(logits: Tensor, problem: Problem) -> Tensor:
    """Return the class with the highest logit, or the value of a regression, (M,), from logits (M, C).

    The predictions of puzzles are classes of cells, (M, L). For a multi-label task, the result is 1 for every label
    with a logit above 0, else 0, (M, C).
    """
    if problem == "multi_label":
        return (logits > 0).long()
    return logits.squeeze(-1) if problem == "regression" else logits.argmax(dim=-1)


def compute_example_losses(logits: Tensor, labels: Tensor, problem: Problem) -> Tensor:
    """Return the loss of each example, (M,) float32: cross-entropy in nats, or squared error for a regression.

    The loss of a puzzle is the mean over its labelled cells, and the loss of a multi-label task is the mean over
    labels. All logits are converted to float32, because in bfloat16 a loss between 4 and 8 could only be a multiple of
    1/32.
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
    """Return the cross-entropy of every token in nats, (B, T) float32, and NaN for a negative label.

    Args:
        logits: Logits, (B, T, C).
        labels: Classes, (B, T).
    """
    losses = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.clamp(min=0).flatten(), reduction="none")
    return losses.view(labels.shape).masked_fill(labels < 0, math.nan)


def compute_rightness(logits: Tensor, labels: Tensor, problem: Problem = "classification") -> Tensor:
    """Return 1 for a right prediction, 0 for a wrong one, and NaN for a negative label, float32."""
    if problem == "multi_label":
        return (predictions(logits, problem) == labels).all(dim=-1).float()
    return (logits.argmax(dim=-1) == labels).float().masked_fill(labels < 0, math.nan)


def is_right(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mask of right predictions. A puzzle is right if all its labelled cells are right.

    Args:
        logits: Logits, (M, C), or (M, L, C) for puzzles; with all steps (M, N, C), or (M, N, L, C) for puzzles.
        labels: Classes, (M,), or (M, L) for puzzles.

    Returns:
        Boolean mask, (M,), or (M, N) if the logits are those of all steps.
    """
    targets = labels if logits.dim() == labels.dim() + 1 else labels.unsqueeze(1)
    right = logits.argmax(dim=-1) == targets
    return right if labels.dim() == 1 else (right | (targets < 0)).all(dim=-1)


def compute_quality(logits: Tensor, labels: Tensor, problem: Problem, metrics: Sequence[str]) -> dict[str, float]:
    """Return the metrics of logits, (M, C), and their mean as `score`. For language modelling, it is minus `loss`."""
    if problem == "language_model":
        loss = float(compute_example_losses(logits, labels, problem).double().mean())
        return {"loss": loss, "score": -loss}
    return quality(metrics, predictions(logits, problem).numpy(), labels.numpy())
