"""Routers that choose the tokens which run a part of a network: choices, gates and losses.

A router reads the state of a token before the part, z = w h, and one of these decides:

    expert    the part chooses its tokens: the k with the largest z (MoD, arXiv 2404.02258; MoR, arXiv 2507.10524)
    token     the token chooses its depth once: argmax_r softmax(z)_r (MoR, section 2.2.1)
    threshold the token chooses for each part: z > 0 (Router-Tuning, arXiv 2410.13184)

The k largest of a sequence depend on its later tokens. A causal network therefore decides by z > 0 when it evaluates
and generates, which the binary cross-entropy between z and the choice in training makes agree with the k largest.

Shape legend: B rows, T tokens, R depths.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Parts of a token in which capacities are counted, since some devices have no float64; rows have up to 2^19 tokens.
_PARTS = 2**44


def count_chosen(capacity: float, lengths: Tensor) -> Tensor:
    """Return the number of tokens that a part chooses in each row: max(1, floor(c n)), int64 (B,).

    Args:
        capacity: Capacity c.
        lengths: Number n of real tokens in each row, int64 (B,). A row without real tokens has no chosen ones.
    """
    almost = round(1e-9 * _PARTS)  # c n may be just below a whole number
    chosen = (round(capacity * _PARTS) * lengths + almost).div(_PARTS, rounding_mode="floor")
    return chosen.clamp(min=1).minimum(lengths)


def select_largest(scores: Tensor, candidates: Tensor, counts: Tensor) -> Tensor:
    """Select the candidates with the largest scores in each row, boolean (B, T).

    Args:
        scores: Scores of the tokens, (B, T).
        candidates: Mask of the tokens that may be selected, boolean (B, T).
        counts: Number of tokens to select in each row, (B,).
    """
    order = scores.masked_fill(~candidates, -torch.inf).argsort(dim=1, descending=True, stable=True)
    ranks = order.argsort(dim=1)
    return candidates & (ranks < counts.unsqueeze(1))


def pass_gradient(chosen: Tensor, probabilities: Tensor) -> Tensor:
    """Return a choice as 0 or 1 in float32, whose gradient is that of the probability (straight-through estimator)."""
    return chosen.float() + probabilities - probabilities.detach()


def choice_losses(logits: Tensor, chosen: Tensor, candidates: Tensor) -> Tensor:
    """Compute the cross-entropy between sigmoid(z) and the choice, averaged over the candidates of each row, (B,).

    MoD, section 3.5, and MoR, equation of the auxiliary loss, learn a causal decision with it.
    """
    losses = nn.functional.binary_cross_entropy_with_logits(logits, chosen.float(), reduction="none")
    return (losses * candidates).sum(dim=1) / candidates.sum(dim=1).clamp(min=1)


def squared_logits(logits: Tensor, candidates: Tensor) -> Tensor:
    """Compute the router's z-loss, logsumexp(z)^2, averaged over the candidates of each row, (B,).

    Args:
        logits: Logits z, (B, T) of one choice or (B, T, R) of depths.
        candidates: Mask of the tokens that the router read, boolean (B, T).
    """
    sums = logits if logits.dim() == 2 else logits.logsumexp(dim=-1)
    return (sums.square() * candidates).sum(dim=1) / candidates.sum(dim=1).clamp(min=1)


def balance_loss(probabilities: Tensor, depths: Tensor, real: Tensor) -> Tensor:
    """Compute R sum_r f_r P_r over a batch, which is 1 for equal loads (MoR, section 2.2.1).

    Args:
        probabilities: Probability of each depth, (B, T, R); P_r is its mean over the real tokens.
        depths: Depth that each token chose, counted from 0, int64 (B, T); f_r is the share of the tokens.
        real: Mask of the tokens that are not padding, boolean (B, T).
    """
    number = probabilities.shape[-1]
    tokens = real.sum().clamp(min=1)
    shares = count_depths(depths, real, number) / tokens
    means = (probabilities * real.unsqueeze(-1)).sum(dim=(0, 1)) / tokens
    return number * (shares * means).sum()


def count_depths(depths: Tensor, real: Tensor, number: int) -> Tensor:
    """Count the real tokens that chose each of R depths, counted from 0, int64 (R,)."""
    return nn.functional.one_hot(depths, number).mul(real.unsqueeze(-1)).sum(dim=(0, 1))


def nudge_bias(bias: Tensor, load: Tensor, step: float) -> Tensor:
    """Return the bias of each depth after a step towards equal loads: b + u sign(mean load - load), (R,)."""
    load = load.to(bias)
    return bias + step * (load.mean() - load).sign()
