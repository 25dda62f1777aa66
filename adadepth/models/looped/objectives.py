"""Training objectives of looped models: weighted losses L_n after every loop, and the number of loops in training.

    last        L_N
    mean        1/N sum_n L_n
    geometric   sum_n w_n L_n,  w_n = g (1 - g)^(n-1),  w_N = (1 - g)^(N-1)     (arXiv 2607.20519)
    gate        sum_n p_n L_n - beta H(p),  p from the halting unit             (Ouro, arXiv 2510.25741, stage I)
    gate_alone  1/(N-1) sum_n BCE(1 - lambda_n, sigmoid(50 (I_n - g)))          (stage II; all else is frozen)

Any other objective is a loss over exits (`adadepth.halting.step_losses`) with depths d_n = n.

With `geometric_truncation=renormalise`, as in earlier versions, w_N = g (1 - g)^(N-1), and all w_n are divided by their
sum.

Ouro divides the sum of `gate_alone` by N instead of by its N - 1 terms, so its loss is smaller by (N - 1) / N. Adam's
updates do not depend on this factor.

I_n is a gain in nats, without gradients, and `gate_pairing` selects it:

    next        max(0, L_n - L_{n+1}), the gain of the next loop, n = 1..N-1
    later       max(0, L_n - min_{m>n} L_m), the gain of the best later loop    (as in RecurTrace, arXiv 2609.03379)
    made        max(0, L_{n-1} - L_n), the gain of the current loop, n = 2..N   (as printed in Ouro's paper)

`made` leaves lambda_1 without a target, and trains lambda_N, which is never read. Ouro's threshold g, `gate_gain`, is
0.005. The target of continuing without any gain is then sigmoid(-0.25) = 0.44, so that the cumulative halting
probability of a finished token rises slowly. With 0.05 this target is 0.08.

`gate_loss=ponder` replaces the loss of `gate_alone` by PonderNet's (arXiv 2107.05407) on the frozen network:

    sum_n p_n L_n + beta KL(p || q),  q the geometric prior of arXiv 2607.20519, with the weights w_n of `geometric`

beta is `entropy_weight`, and g of the prior is `geometric_share`.

The logits of all loops at once would be the largest tensor of a training step. Cross-entropies are therefore computed
for a part of the tokens at a time, and recomputed in the backward pass. Shape legend: M targets, N loops, D width, V
vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadepth.halting.distribution import continuation_losses, geometric_prior, halting_distribution, halting_kl
from adadepth.halting.exit_rules import ExitRule, select_predictions
from adadepth.halting.step_losses import parse_step_loss
from adadepth.models.looped.settings import Objective
from adadepth.models.shared.causal import count_rows_at_once
from adadepth.models.shared.losses import LossTerm, expected_loss, weigh_steps

_SHARPNESS = 50.0  # slope of the sigmoid in Ouro's targets of the second stage


@torch.no_grad()
def mixed_losses(
    rule: ExitRule, readings: Sequence[Tensor], halting: Tensor, targets: Tensor, head: Callable[[Tensor], Tensor]
) -> Tensor:
    """Compute the cross-entropies of predictions averaged over N loops by an exit rule, float32 (M,)."""
    states = torch.stack(list(readings), dim=1)
    exits = torch.full_like(targets, len(readings))
    pieces = head(states[:1, 0]).shape[-1] if len(states) else 1
    rows = count_rows_at_once(pieces * len(readings), targets.device)
    parts = zip(*(values.split(rows) for values in (states, halting, exits, targets)), strict=True)
    losses = [
        nn.functional.cross_entropy(select_predictions(rule, head(read), logits, last), target, reduction="none")
        for read, logits, last, target in parts
    ]
    return torch.cat(losses)


def objective_terms(config: Any, losses: Tensor, halting: Tensor | None, weights: Tensor) -> dict[str, LossTerm]:
    """Compute the parts of the training loss, summed over M targets; the objective defines the weight of each loop.

    Args:
        config: Configuration with `objective` and its parameters.
        losses: Losses L_n, float32 (M, N).
        halting: Halting logits z_n, (M, N).
        weights: Weight of every target, (M,).
    """
    weights = weights.float()
    count = weights.sum()
    match config.objective:
        case "gate_alone":
            assert halting is not None
            if config.gate_loss == "ponder":
                gate = ponder_losses(halting, losses.detach(), config.geometric_share, config.entropy_weight)
            else:
                gate = gate_losses(halting, losses.detach(), config.gate_pairing, config.gate_gain)
            return {"gate": LossTerm((gate * weights).sum(), count)}
        case "gate":
            assert halting is not None
            posterior = halting_distribution(halting, "leftover")
            expected = expected_loss(losses, posterior.pmf)
            terms = {"task": LossTerm((expected * weights).sum(), count)}
            if config.entropy_weight:
                entropy = -(posterior.entropy() * weights).sum()
                terms["entropy"] = LossTerm(entropy, count, config.entropy_weight)
            return terms
        case "geometric":
            prior = geometric_prior(config.geometric_share, losses.shape[1], config.geometric_truncation, losses.device)
            expected = expected_loss(losses, prior.pmf)
        case "mean":
            expected = losses.mean(dim=-1)
        case "last":
            expected = losses[:, -1]
        case text:
            loops = range(1, losses.shape[1] + 1)
            expected = expected_loss(losses, weigh_steps(parse_step_loss(text, tuple(Objective)), losses, loops))
    return {"task": LossTerm((expected * weights).sum(), count)}


def gate_losses(halting: Tensor, losses: Tensor, pairing: str, threshold: float) -> Tensor:
    """Compute the loss that trains only the halting unit (Ouro's second stage), (M,), from z_n and L_n, (M, N) each.

    The loss of a single loop, which has no pair, is 0.

    Args:
        halting: Halting logits z_n, (M, N).
        losses: Losses L_n, float32 (M, N).
        pairing: Gain that each logit learns: `next`, `later` or `made`.
        threshold: Gain g in nats at which the target of continuing is one half.
    """
    if pairing == "later":
        return continuation_losses(halting, losses, _SHARPNESS, threshold)
    gains = (losses[:, :-1] - losses[:, 1:]).clamp(min=0)
    goes_on = torch.sigmoid(_SHARPNESS * (gains - threshold))
    paired = halting[:, 1:] if pairing == "made" else halting[:, :-1]
    losses_of_pairs = nn.functional.binary_cross_entropy_with_logits(-paired.float(), goes_on, reduction="none")
    return losses_of_pairs.sum(dim=-1) / max(gains.shape[-1], 1)


def ponder_losses(halting: Tensor, losses: Tensor, share: float, weight: float) -> Tensor:
    """Compute PonderNet's loss sum_n p_n L_n + weight KL(p || geometric prior), (M,), from z_n and L_n, (M, N) each.

    Args:
        halting: Halting logits z_n, (M, N).
        losses: Losses L_n, float32 (M, N).
        share: Halting probability g of the prior, whose last loop gets the rest.
        weight: Weight beta of the divergence.
    """
    posterior = halting_distribution(halting, "leftover")
    prior = geometric_prior(share, losses.shape[1], "leftover", losses.device)
    return expected_loss(losses, posterior.pmf) + weight * halting_kl(posterior, prior, "posterior_prior")


# ---- Numbers of loops in training


def compute_curriculum_loops(most: int, shape: str, share: float, done: int, total: int) -> int:
    """Return the number of loops in the next optimiser step: ceil(N f(x)), at least 1, with x = done / (share total).

    f(x) is x for `linear` and 1 - sqrt(1 - x) for `sqrt`, and 1 for x >= 1 (the curricula of arXiv 2511.07384). The
    number depends only on the step.

    Args:
        most: Maximum number N of loops.
        shape: `linear`, `sqrt`, or `none` for always N loops.
        share: Share of all optimiser steps in which the number of loops grows.
        done: Number of completed optimiser steps.
        total: Number of optimiser steps of the whole training.
    """
    progress = 1.0 if shape == "none" else min(done / (share * max(total, 1)), 1.0)
    factor = progress if shape == "linear" else 1 - math.sqrt(1 - progress)
    return max(1, math.ceil(most * factor - 1e-9))


_WORD = 0x9E3779B97F4A7C15 - 2**64  # splitmix64's constants (Steele et al. 2014), as signed numbers
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
_MAX_RATIO = 8  # no text gets more loops than this times the mean


def text_uniforms(ids: Tensor, mask: Tensor | None, seed: int, step: int) -> Tensor:
    """Return two reproducible random numbers in [0, 1) per text, float64 (B, 2), from its tokens, seed and step.

    A resumed run therefore draws the same numbers as an uninterrupted one. They do not depend on the process, the
    micro-batch or the padding of a text.

    Args:
        ids: Token ids, (B, T).
        mask: Mask of the real tokens, (B, T), or None if all are real.
        seed: Seed, the setting `draw_seed`.
        step: Number of completed optimiser steps.
    """
    real = torch.ones_like(ids, dtype=torch.long) if mask is None else mask.long()
    texts = (_mix_bits(ids.long() + real.cumsum(dim=1) * _WORD) * real).sum(dim=1)
    start = _mix_bits(torch.tensor([seed, step]) * _WORD + torch.tensor([1, 2]))  # numbers of the host
    keys = texts + (start[0] + _mix_bits(start[1]))
    numbers = [_mix_bits(keys + which) for which in (1, 2)]
    return torch.stack([((number >> 11) & (2**53 - 1)).double() * 2.0**-53 for number in numbers], dim=1)


def draw_loops(uniform: Tensor, mean: int, spread: float) -> Tensor:
    """Draw numbers of loops, int64 (B,), as 1 + Poisson(rate) with ln rate ~ Normal(ln mean - spread^2/2, spread).

    The distribution is that of Huginn (arXiv 2502.05171).

    Args:
        uniform: Two numbers in [0, 1) for every text, float64 (B, 2), which are mapped to quantiles.
        mean: Mean of the rate.
        spread: Standard deviation of the logarithm of the rate.
    """
    normal = torch.special.ndtri(uniform[:, 0].clamp(1e-12, 1 - 1e-12))
    rate = torch.exp(math.log(mean) - spread**2 / 2 + spread * normal)
    counts = torch.arange(1, _MAX_RATIO * mean, device=uniform.device, dtype=torch.float64)
    below = torch.special.gammaincc(counts.unsqueeze(0), rate.unsqueeze(1))  # P(Poisson < count)
    return 1 + (below <= uniform[:, 1:]).sum(dim=1)


def _mix_bits(words: Tensor) -> Tensor:
    """Hash 64-bit words so that every bit of the result depends on every bit of the word."""
    for shift, factor in _MIX:
        words = (words ^ _shift_right(words, shift)) * factor
    return words ^ _shift_right(words, 31)


def _shift_right(words: Tensor, bits: int) -> Tensor:
    return (words >> bits) & (2 ** (64 - bits) - 1)
