"""What looped models are trained on: losses L_n after every loop, and how they are weighted.

    last        L_N
    mean        1/N sum_n L_n
    geometric   sum_n w_n L_n,  w_n ~ g (1 - g)^(n-1), truncated at N           (arXiv 2607.20519)
    gate        sum_n p_n L_n - beta H(p),  p from the halting unit             (Ouro, arXiv 2510.25741, stage I)
    gate_alone  1/(N-1) sum_n BCE(1 - lambda_n, sigmoid(50 (I_n - 0.005)))      (stage II; all else is frozen)

I is what a loop gains, max(0, L - L of the loop after it), without gradients. Ouro prints lambda_n beside the gain that
loop n has made, n = 2..N, which leaves lambda_1 without a target and trains lambda_N, which is never asked;
`gate_pairing=made` does that. `next` pairs lambda_n with the gain that loop n + 1 would make, n = 1..N-1.

Logits of all loops at once would be the largest tensor of a training step: cross-entropies are made of a part of the
tokens at a time, and again in the backward pass. Shape legend: M targets, N loops, D width, V pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adadepth.families.shared.losses import IGNORED_LABEL, LossTerm, check_classes
from adadepth.halting.distribution import geometric_prior, halting_distribution
from adadepth.halting.exit_rules import ExitRule, predictions_at

# Ouro's targets of the second stage: how sharply a gain is told from none, and what gain is none.
_SHARPNESS, _NO_GAIN = 50.0, 0.005
_NUMBERS = 2**23  # logits that are made at once


def causal_targets(labels: Tensor) -> Tensor:
    """What follows each position, (B, T): the label of the next one; of the last one nothing is known."""
    return nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)


def cross_entropies(states: Tensor, targets: Tensor, head: Callable[[Tensor], Tensor], pieces: int) -> Tensor:
    """Of every prediction, float32 (M,): states (M, D), targets (M,) none of which is negative.

    Args:
        states: What the head reads.
        targets: Pieces.
        head: From (m, D) to logits (m, V).
        pieces: V.

    Raises:
        DataError: If a target is no piece; see `check_classes`.
    """
    check_classes(targets, pieces)
    rows = max(1, _NUMBERS // pieces)

    def part(read: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.cross_entropy(head(read).float(), wanted, reduction="none")

    losses = [
        checkpoint(part, read, wanted, use_reentrant=False) if torch.is_grad_enabled() else part(read, wanted)
        for read, wanted in zip(states.split(rows), targets.split(rows), strict=True)
    ]
    return torch.cat(losses) if losses else states.new_zeros(0, dtype=torch.float32)


def loop_losses(every: Sequence[Tensor], targets: Tensor, head: Callable[[Tensor], Tensor], pieces: int) -> Tensor:
    """L_n of a language model's M targets, float32 (M, n).

    Args:
        every: r_n of some loops, (M, D) each.
        targets: The piece that follows each token, (M,), none of them negative.
        head: From states to logits.
        pieces: V.
    """
    return torch.stack([cross_entropies(read, targets, head, pieces) for read in every], dim=1)


@torch.no_grad()
def mixed_losses(
    rule: ExitRule, every: Sequence[Tensor], halting: Tensor, targets: Tensor, head: Callable[[Tensor], Tensor]
) -> Tensor:
    """Cross-entropies of the predictions that a rule mixes of N loops, float32 (M,); see `loop_losses`."""
    states = torch.stack(list(every), dim=1)
    exits = torch.full_like(targets, len(every))
    pieces = head(states[:1, 0]).shape[-1] if len(states) else 1
    rows = max(1, _NUMBERS // (pieces * len(every)))
    parts = zip(*(each.split(rows) for each in (states, halting, exits, targets)), strict=True)
    found = [
        nn.functional.cross_entropy(predictions_at(rule, head(read), logits, last), wanted, reduction="none")
        for read, logits, last, wanted in parts
    ]
    return torch.cat(found)


def objective_terms(config: Any, losses: Tensor, halting: Tensor | None, weights: Tensor) -> dict[str, LossTerm]:
    """The parts of a loss, summed over M targets; `task` is weighted over the loops as the objective says.

    Args:
        config: With `objective` and what belongs to it.
        losses: L_n, float32 (M, N).
        halting: z_n, (M, N).
        weights: What every target counts, (M,).
    """
    weights = weights.float()
    count = weights.sum()
    match config.objective:
        case "gate_alone":
            assert halting is not None
            each = gate_losses(halting, losses.detach(), config.gate_pairing)
            return {"gate": LossTerm((each * weights).sum(), count)}
        case "gate":
            assert halting is not None
            posterior = halting_distribution(halting, "leftover")
            expected = (posterior.pmf * losses).sum(dim=-1)
            terms = {"task": LossTerm((expected * weights).sum(), count)}
            if config.entropy_weight:
                entropy = -(posterior.entropy() * weights).sum()
                terms["entropy"] = LossTerm(entropy, count, config.entropy_weight)
            return terms
        case "geometric":
            prior = geometric_prior(config.geometric_share, losses.shape[1], "renormalise", losses.device)
            expected = (prior.pmf * losses).sum(dim=-1)
        case "mean":
            expected = losses.mean(dim=-1)
        case _:
            expected = losses[:, -1]
    return {"task": LossTerm((expected * weights).sum(), count)}


def gate_losses(halting: Tensor, losses: Tensor, pairing: str) -> Tensor:
    """Ouro's second stage, (M,): z_n and L_n, (M, N) each, N at least 2."""
    gains = (losses[:, :-1] - losses[:, 1:]).clamp(min=0)
    goes_on = torch.sigmoid(_SHARPNESS * (gains - _NO_GAIN))
    asked = halting[:, 1:] if pairing == "made" else halting[:, :-1]
    each = nn.functional.binary_cross_entropy_with_logits(-asked.float(), goes_on, reduction="none")
    return each.mean(dim=-1)


# ---- Numbers of loops in training


def loops_at(most: int, shape: str, share: float, done: int, total: int) -> int:
    """Loops of the update after `done` of `total` ones: ceil(N f(x)), at least 1, with x = done / (share total).

    f(x) = x of `linear`, 1 - sqrt(1 - x) of `sqrt`, 1 from x = 1 on (the curricula of arXiv 2511.07384): a function of
    the update alone.

    Args:
        most: N.
        shape: `none`: always N.
        share: Of all updates, in which loops grow.
        done: Updates made.
        total: Of the training.
    """
    reached = 1.0 if shape == "none" else min(done / (share * max(total, 1)), 1.0)
    grown = reached if shape == "linear" else 1 - math.sqrt(1 - reached)
    return max(1, math.ceil(most * grown - 1e-9))


_WORD = 0x9E3779B97F4A7C15 - 2**64  # splitmix64's constants (Steele et al. 2014), as signed numbers
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
_MOST = 8  # times the mean: no text gets more loops


def text_uniforms(ids: Tensor, seed: int, step: int) -> Tensor:
    """Two numbers in [0, 1) for every text of an update, float64 (B, 2): functions of text, seed and update alone.

    So a run that goes on draws what it would have drawn, and a text gets its loops whichever process or micro-batch has
    it.

    Args:
        ids: (B, T).
        seed: `draw_seed`.
        step: Updates made.
    """
    places = torch.arange(1, ids.shape[1] + 1, device=ids.device) * _WORD
    texts = _mixed(ids.long() + places).sum(dim=1)
    start = _mixed(torch.tensor([seed, step], device=ids.device) * _WORD + torch.tensor([1, 2], device=ids.device))
    keys = texts + start[0] + _mixed(start[1:])
    numbers = [_mixed(keys + which) for which in (1, 2)]
    return torch.stack([((number >> 11) & (2**53 - 1)).double() * 2.0**-53 for number in numbers], dim=1)


def drawn_loops(uniform: Tensor, mean: int, spread: float) -> Tensor:
    """1 + Poisson(rate), ln rate ~ Normal(ln mean - spread^2/2, spread) (Huginn, arXiv 2502.05171), int64 (B,).

    Args:
        uniform: Two numbers in [0, 1) for every text, float64 (B, 2), whose quantiles are taken.
        mean: Of the rate.
        spread: sigma.
    """
    normal = torch.special.ndtri(uniform[:, 0].clamp(1e-12, 1 - 1e-12))
    rate = torch.exp(math.log(mean) - spread**2 / 2 + spread * normal)
    counts = torch.arange(1, _MOST * mean, device=uniform.device, dtype=torch.float64)
    below = torch.special.gammaincc(counts.unsqueeze(0), rate.unsqueeze(1))  # P(Poisson < count)
    return 1 + (below <= uniform[:, 1:]).sum(dim=1)


def _mixed(words: Tensor) -> Tensor:
    """Words of 64 bits, every bit of which depends on every bit of what is given."""
    for shift, factor in _MIX:
        words = (words ^ _shifted(words, shift)) * factor
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, bits: int) -> Tensor:
    return (words >> bits) & (2 ** (64 - bits) - 1)
