"""How well a model knows when it may stop, and how sure it may be: two calibrations of recorded classifications.

Shape legend: M examples, N steps, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adadepth.analysis.measure.scoring import is_right

CONFIDENCE_BINS = 15


def first_correct_steps(step_logits: Tensor, labels: Tensor) -> Tensor:
    """The first step whose prediction is right, 1-based, (M,) int64; N + 1 where none is.

    Args:
        step_logits: (M, N, C).
        labels: (M,) int64.
    """
    right = is_right(step_logits, labels)
    first = right.int().argmax(dim=1) + 1
    return torch.where(right.any(dim=1), first, step_logits.shape[1] + 1)


def halting_calibration(step_logits: Tensor, labels: Tensor, pmf: Tensor) -> dict[str, Any]:
    """Compare where examples are first right with where the halting distribution puts its mass.

    With f_n the share of examples first right at step n, f_0 the share never right, p_n the mean halting probability of
    step n and p_0 = 1 - sum_n p_n what the distribution leaves (0 unless it is truncated without a rule), the distance
    is the total variation 1/2 sum_n |f_n - p_n| over n = 0..N: 0 for equal, 1 for disjoint distributions. A model that
    is often wrong at every step cannot reach 0: f_0 is a lower bound where p_0 = 0.

    Args:
        step_logits: (M, N, C).
        labels: (M,) int64.
        pmf: Halting distribution of every example, (M, N).

    Returns:
        `first_correct` (N shares), `never_correct`, `total_variation`, `n`.
    """
    steps = step_logits.shape[1]
    counts = torch.bincount(first_correct_steps(step_logits, labels), minlength=steps + 2)[1:]
    shares = counts.double() / len(labels)
    mean = pmf.double().mean(dim=0)
    predicted = torch.cat([mean, (1 - mean.sum()).clamp(min=0).view(1)])
    return {
        "first_correct": shares[:-1].tolist(),
        "never_correct": float(shares[-1]),
        "total_variation": float((shares - predicted).abs().sum() / 2),
        "n": len(labels),
    }


def confidence_calibration(confidence: Tensor, right: Tensor, bins: int = CONFIDENCE_BINS) -> dict[str, Any]:
    """Expected calibration error of a probability of being right (Guo et al. 2017, equation 3), with its bins.

    ECE = sum_b n_b / M |accuracy_b - confidence_b| over `bins` bins of equal width, each without its lower border.

    Args:
        confidence: The probability of being right: the highest of a class, or what the model says itself; (M,).
        right: Whether it is, boolean (M,).
        bins: Number of bins on [0, 1].

    Returns:
        `ece`, `n`, and `bins`: `low`, `high`, `n`, `confidence` and `accuracy` of those that hold an example.
    """
    confidence, right = confidence.double(), right.double()
    number = (confidence * bins).ceil().long().clamp(1, bins) - 1
    rows, error = [], 0.0
    for position in number.unique().tolist():
        inside = number == position
        row = {
            "low": position / bins,
            "high": (position + 1) / bins,
            "n": int(inside.sum()),
            "confidence": float(confidence[inside].mean()),
            "accuracy": float(right[inside].mean()),
        }
        error += row["n"] / len(right) * abs(row["accuracy"] - row["confidence"])
        rows.append(row)
    return {"ece": error, "n": len(right), "bins": rows}
