"""Training of early exits: weights and curricula of their losses, layer dropout, and losses a part at a time.

Exit n of N is after layer l_n of L, counted from 1. The loss is sum_n w_n CE_n, sum_n w_n = 1, w_n proportional to
C_n e_n, where

    e_n      = 1                                  uniform
               l_n                                linear
               sum_{i<l_n} i                      layerskip (arXiv 2404.16710); L - 1 + s sum_{i<L-1} i of the last
    e_n      is times s, `exit_scale`, of all exits but the last
    C_n      = 1 if exit n has a loss in this step, t of T:
               (n - 1 - t) mod R = 0              rotational
               t / T >= (N - n + 1) / (2 N)       gradual: from the last exit to the first, over half of the training
    C_N      = 1

A text skips layer l in training with the probability p = S(t) D(l) p_max, where

    D(l) = exp((l - 1) ln 2 / (L - 1)) - 1        0 in the first layer, 1 in the last
    S(t) = 1, or exp(t ln 2 / (T - 1)) - 1        `dropout_growth`

Distillation adds the divergence KL(p_N || p_n) of each early exit from the last one, which gets no gradient of it, with
the same weights. Logits of a part of the tokens exist at a time, and are computed again in the backward pass.

Shape legend: M targets, N exits, D width, V pieces or classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adadepth.models.shared.causal import compute_in_parts


def exit_weights(config: Any, step: int | None = None, total: int = 1) -> list[float]:
    """Return w_n of every exit.

    Args:
        config: An `EarlyExitConfig`.
        step: Completed optimiser steps t; None: all exits have a loss.
        total: Optimiser steps T of the training.
    """
    exits, layers, scale = config.exits, config.num_hidden_layers, config.exit_scale
    match config.exit_weights:
        case "uniform":
            weights = [1.0] * len(exits)
        case "linear":
            weights = [float(layer) for layer in exits]
        case "layerskip":
            weights = [layer * (layer - 1) / 2 for layer in exits]
            weights[-1] = layers - 1 + scale * (layers - 1) * (layers - 2) / 2
        case _:
            weights = [0.0] * (len(exits) - 1) + [1.0]
    weights = [scale * weight for weight in weights[:-1]] + weights[-1:]
    if step is not None:
        weights = [weight * has_loss(config, number, step, total) for number, weight in enumerate(weights, start=1)]
    if config.trains == "exits":
        weights[-1] = 0.0
    whole = sum(weights)
    return [weight / whole for weight in weights] if whole else weights


def has_loss(config: Any, exit: int, step: int, total: int) -> bool:
    """Return whether an exit, counted from 1, has a loss in an optimiser step; see the module."""
    exits = len(config.exits)
    if exit == exits or config.exit_curriculum == "none":
        return True
    if config.exit_curriculum == "rotational":
        return (exit - 1 - step) % config.rotation == 0
    return step / max(total, 1) >= 0.5 * (exits - exit + 1) / exits


def dropout_probability(config: Any, layer: int, step: int | None, total: int) -> float:
    """Return the probability with which a text skips a layer, counted from 1, after `step` of `total` steps.

    Without a step it has grown to its end; see the module.
    """
    by_depth = math.expm1((layer - 1) * math.log(2) / max(config.num_hidden_layers - 1, 1))
    by_step = 1.0
    if config.dropout_growth == "exponential" and step is not None:
        by_step = math.expm1(min(step, total - 1) * math.log(2) / max(total - 1, 1))
    return by_step * by_depth * config.layer_dropout


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
