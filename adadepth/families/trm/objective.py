"""What a supervision step is trained on: the answer's cells, and whether all of them are right.

    loss = 1/B sum_b ( mean over labelled cells of CE + w BCE(q_b, 1[all labelled cells of b are right now]) )

The means are over the cells of a row first: a row with few labelled cells counts as much as any other. Shape legend: B
rows, L cells, V symbols.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from adadepth.families.shared.losses import LossTerm


def stablemax_log_probabilities(logits: Tensor) -> Tensor:
    """Log s(v) / sum s(v), s(v) = v + 1 for v >= 0 and 1 / (1 - v) below, (..., V) float64.

    Prieto et al. 2025 (arXiv 2501.04697), equation 5: grows linearly, so that it does not overflow. float64 as in the
    published code; float32 on devices without it.
    """
    precise = logits.float() if logits.device.type == "mps" else logits.double()
    # Each branch sees values of its own side only: the other's pole would put NaN into the gradient.
    scores = torch.where(precise < 0, 1.0 / (1.0 - precise.clamp(max=0.0)), precise.clamp(min=0.0) + 1.0)
    return scores.log() - scores.sum(dim=-1, keepdim=True).log()


def answer_losses(logits: Tensor, labels: Tensor, kind: str) -> Tensor:
    """Mean cross-entropy of the labelled cells of each row, (B, L, V) and (B, L) to float32 (B,); 0 without any."""
    log_probabilities = (
        stablemax_log_probabilities(logits) if kind == "stablemax" else logits.float().log_softmax(dim=-1)
    )
    labelled = labels >= 0
    losses = -log_probabilities.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    sums = (losses * labelled).sum(dim=-1)
    return (sums / labelled.sum(dim=-1).clamp(min=1)).float()


def all_right(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether every labelled cell of a row has its largest logit at its label, boolean (B,)."""
    return ((logits.argmax(dim=-1) == labels) | (labels < 0)).all(dim=-1)


def step_terms(logits: Tensor, q: Tensor, labels: Tensor, kind: str, halt_weight: float) -> dict[str, LossTerm]:
    """The parts `task` and `halt` of the loss, summed over rows; `halt` is weighted.

    Args:
        logits: Of the cells, (B, L, V).
        q: Logits of being right, (B,).
        labels: (B, L) int64, negative where a cell is not asked for.
        kind: `stablemax` or `softmax`.
        halt_weight: w.
    """
    rows = torch.full((), len(labels), device=labels.device)
    right = all_right(logits.detach(), labels).float()
    halt = functional.binary_cross_entropy_with_logits(q.float(), right, reduction="none")
    return {
        "task": LossTerm(answer_losses(logits, labels, kind).sum(), rows),
        "halt": LossTerm(halt.sum(), rows, halt_weight),
    }
