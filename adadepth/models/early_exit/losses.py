"""Training of early exits: weights and curricula of their losses, layer dropout, and losses a part at a time.

Exit n of N is after layer l_n of L, counted from 1. The loss is sum_n w_n CE_n, sum_n w_n = 1, w_n proportional to
C_n e_n, where

    e_n      is that of `adadepth.halting.step_losses`, with depths d_n = l_n of the exits with a loss
    e_n      is times s, `exit_scale`, of all exits but the last; L - 1 + s sum_{i<L-1} i of layerskip's last exit
    C_n      = 1 if exit n has a loss in this step, after t of T steps:
               ((n - 1 - t) mod N) mod R = 0      rotational: a pattern of every R-th exit turns by one exit a step
               (t - 1) / T >= (L - l_n + 1) / 2L  gradual: from the last layer to the first, over half of the training
    C_N      = 1

A loss over exits that reads the losses gives w_n itself, times s of all exits but the last. Its sum is not made 1.

Curricula and weights are those of torchtune (`torchtune/modules/early_exit_loss.py`); the weights of layerskip are the
paper's. torchtune's recipe reads exit n before layer n; here, as in the paper, exit n is after layer l_n.

A text skips layer l in training with the probability p = S(t) D(l) p_max, where

    D(l) = 2^((l - 1) / (L - 1)) - 1              0 in the first layer, 1 in the last, also if there is only one
    S(t) = 1, or 2^(t / (T - 1)) - 1              `dropout_growth`

A gate z_n = w h + b, shared by all exits, learns whether the prediction of an early exit is right (BERxiT, Xin et al.
2021). It reads the state h of the unit without gradients, and its loss is

    1/(N-1) sum_{n<N} BCE(sigmoid(z_n), [argmax of exit n = label])

Distillation adds the divergence KL(p_N || p_n) of each early exit from the last one, which gets no gradient of it, with
the same weights. Logits of a part of the tokens exist at a time, and are computed again in the backward pass.

Shape legend: M targets, N exits, D width, V pieces or classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadepth.halting.step_losses import parse_step_loss
from adadepth.models.shared.causal import compute_in_parts
from adadepth.models.shared.losses import weigh_steps


def exit_weights(config: Any, step: int | None = None, total: int = 1) -> list[float]:
    """Return w_n of every exit; if the loss over exits reads the losses, the factors of its weights.

    Args:
        config: An `EarlyExitConfig`.
        step: Completed optimiser steps t; None: all exits have a loss.
        total: Optimiser steps T of the training.
    """
    exits, layers, scale = config.exits, config.num_hidden_layers, config.exit_scale
    numbers = [number for number in range(1, len(exits) + 1) if step is None or has_loss(config, number, step, total)]
    relative = parse_step_loss(config.exit_weights).weigh_depths([exits[number - 1] for number in numbers])
    *early, last = [1.0] * len(numbers) if relative is None else relative
    if config.exit_weights == "layerskip":
        last = layers - 1 + scale * (layers - 1) * (layers - 2) / 2
    if config.trains == "exits":
        last = 0.0
    weights = dict(zip(numbers, [*(scale * weight for weight in early), last], strict=True))
    whole = 1.0 if relative is None else sum(weights.values()) or 1.0
    return [weights.get(number, 0.0) / whole for number in range(1, len(exits) + 1)]


def weigh_exits(config: Any, factors: Sequence[float], losses: Mapping[int, Tensor]) -> dict[int, float | Tensor]:
    """Return the weight of the loss of every exit, by its number; (M,) if the loss over exits reads the losses.

    Args:
        config: An `EarlyExitConfig`.
        factors: Weights or factors of all exits, from `exit_weights`.
        losses: Losses of the units by the number of the exit, (M,) each.
    """
    loss = parse_step_loss(config.exit_weights)
    numbers = [number for number in losses if factors[number - 1]]
    depths = [config.exits[number - 1] for number in numbers]
    if not numbers or loss.weigh_depths(depths) is not None:
        return {number: factors[number - 1] for number in losses}
    table = torch.stack([losses[number] for number in numbers], dim=1)
    columns = weigh_steps(loss, table, depths).expand(table.shape).unbind(dim=1)
    weights = {number: factors[number - 1] * column for number, column in zip(numbers, columns, strict=True)}
    return {number: weights.get(number, 0.0) for number in losses}


def combine_exits(losses: Mapping[int, Tensor], weights: Mapping[int, float | Tensor]) -> Tensor:
    """Compute the weighted sum of the losses of exits, sum_n w_n L_n, in the order of the exits.

    Args:
        losses: Losses by the number of the exit: of the units, (M,) each, or their sum, which a number weighs.
        weights: Weight of each exit, or of each of its losses, (M,).
    """
    terms = [weights[number] * loss for number, loss in losses.items()]
    return sum(terms[1:], start=terms[0])


def has_loss(config: Any, exit: int, step: int, total: int) -> bool:
    """Return whether an exit, counted from 1, has a loss in an optimiser step; see the module."""
    exits, layers = len(config.exits), config.num_hidden_layers
    if exit == exits or config.exit_curriculum == "none":
        return True
    if config.exit_curriculum == "rotational":
        return (exit - 1 - step) % exits % config.rotation == 0
    return (step - 1) / max(total, 1) >= 0.5 * (layers - config.exits[exit - 1] + 1) / layers


def dropout_probability(config: Any, layer: int, step: int | None, total: int) -> float:
    """Return the probability with which a text skips a layer, counted from 1, after `step` of `total` steps.

    Without a step it has grown to its end; see the module.
    """
    by_depth, by_step = _grow(layer - 1, config.num_hidden_layers - 1), 1.0
    if config.dropout_growth == "exponential" and step is not None:
        by_step = _grow(step, total - 1)
    return by_step * by_depth * config.layer_dropout


def _grow(position: int, end: int) -> float:
    """Return 2^(position / end) - 1, which is 0 at 0, and 1 from the end on."""
    return 2 ** (position / end) - 1 if position < end else 1.0


def divergences(predicted: Tensor, aim: Tensor, temperature: float) -> Tensor:
    """Compute T^2 KL(softmax(aim / T) || softmax(predicted / T)) of every row of logits, float32 (M,).

    Of outputs that are no classes, one column, it is the squared difference.
    """
    predicted, aim = predicted.float(), aim.detach().float()
    if predicted.shape[-1] == 1:
        return (predicted - aim).square().squeeze(-1)
    log_aim, log_predicted = ((logits / temperature).log_softmax(dim=-1) for logits in (aim, predicted))
    return temperature**2 * nn.functional.kl_div(log_predicted, log_aim, reduction="none", log_target=True).sum(dim=-1)


def token_divergences(
    states: Tensor,
    last: Tensor,
    heads: Sequence[Callable[[Tensor], Tensor]],
    pieces: int,
    temperature: float,
) -> Tensor:
    """Compute the divergence of every prediction of an exit from that of the last exit, float32 (M,).

    Args:
        states: States at the exit, (M, D).
        last: States at the last exit, (M, D).
        heads: Functions from states to logits, of the exit and of the last one.
        pieces: V.
        temperature: Temperature of both.
    """
    head, last_head = heads

    def compute(read: Tensor, read_last: Tensor) -> Tensor:
        with torch.no_grad():
            aim = last_head(read_last)
        return divergences(head(read), aim, temperature)

    return compute_in_parts(compute, pieces, states, last.detach())


def exit_gate_losses(gates: Tensor, is_right: Tensor) -> Tensor:
    """Compute the loss of the gates of every unit, float32 (M,); see the module.

    Args:
        gates: Logits z_n of the gates at the early exits, (M, N - 1).
        is_right: Whether the prediction of each early exit is right, (M, N - 1).
    """
    targets = is_right.float()
    return nn.functional.binary_cross_entropy_with_logits(gates.float(), targets, reduction="none").mean(dim=1)


@torch.no_grad()
def find_right(states: Tensor, targets: Tensor, head: Callable[[Tensor], Tensor], pieces: int) -> Tensor:
    """Return whether the likeliest word is the target, float32 (M,); see `cross_entropies` for the arguments."""
    return compute_in_parts(lambda read, target: (head(read).argmax(dim=-1) == target).float(), pieces, states, targets)
