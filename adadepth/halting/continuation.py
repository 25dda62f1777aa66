"""Is it worth going on? Targets for a halting unit that is trained alone, from the losses of a finished model.

    g_n = max(0, l_n - min_{m > n} l_m)       what the best of the further steps would save, in units of the loss
    c_n = sigmoid(k (g_n - gamma))            target of going on after step n; that of halting, lambda_n, is 1 - c_n

After the second stage of Ouro (Zhu et al. 2025, arXiv 2510.25741), which asks whether one more step lowers
the loss. Where a solution takes several steps the loss stands still until the last of them, so here any later step
counts.

Shape legend: ... any leading dimensions, N steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def further_gain(losses: Tensor) -> Tensor:
    """How much lower the loss gets after each step but the last, g_n >= 0: (..., N) to (..., N - 1)."""
    best_from_here_on = losses.flip(-1).cummin(dim=-1).values.flip(-1)
    return (losses[..., :-1] - best_from_here_on[..., 1:]).clamp(min=0.0)


def continuation_targets(losses: Tensor, slope: float, threshold: float) -> Tensor:
    """Target probability of going on after each step but the last, without gradient: (..., N) to (..., N - 1).

    Args:
        losses: l_n, the task loss of an example after every step.
        slope: k, how sharply the target turns from stopping to going on.
        threshold: gamma, the gain that is worth further steps.
    """
    return torch.sigmoid(slope * (further_gain(losses.detach().float()) - threshold))


def continuation_losses(halting_logits: Tensor, losses: Tensor, slope: float, threshold: float) -> Tensor:
    """Binary cross-entropy of lambda_n = sigmoid(z_n) with its target 1 - c_n, mean over the steps: (..., N) to (...).

    The last step is left out, because nobody can go on after it.
    """
    halt = 1.0 - continuation_targets(losses, slope, threshold)
    decided = halting_logits[..., :-1].float()
    return nn.functional.binary_cross_entropy_with_logits(decided, halt, reduction="none").mean(dim=-1)
