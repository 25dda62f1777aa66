"""Elastic depth of looped models (LoopFormer, arXiv 2602.11451): schedules of steps, conditioned layers, and the loss.

A schedule of N loops has steps d_1..d_N that sum to 1. Loop n begins at the time t_n = d_1 + ... + d_(n-1), and every
layer of the core knows both:

    c_n = SiLU(f(t_n) + h(d_n))                              f, h: sinusoids and an MLP each
    (g_a, s_a, g_m, s_m) = W c_n + b                         for every layer; W = 0 and b = 0 before training
    x = x + g_a attention(rms(x) (1 + s_a))
    x = x + g_m mlp(rms(x) (1 + s_m))

A new layer is therefore the identity. A forward pass of N loops has steps of 1/N. Training with `objective=elastic`
runs this long schedule, and a short one of L ~ U{1..N-1} steps, which are uniform on the simplex:

    L = CE(r_long) + .1 CE(r_short) + .1 |sg(r_long) - r_short|^2 / D

The head input after the last loop is r, and sg stops the gradient. The paper's control has this loss without
conditioning, as `loop_conditioning=none` has. With other `norms` than `pre`, a gain multiplies what is added to x,
after the norm of `branch` and before that of `sandwich`.

Shape legend: N loops, C layers of the core, D width, K units.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from adadepth.models.shared.layers import Product
from adadepth.models.shared.losses import LossTerm
from adadepth.runtime.devices import upload

_SINUSOIDS, _LONGEST = 256, 10000.0  # features of a time, and the ratio of their longest to their shortest period
_SHORT_WEIGHT, _CONSISTENCY_WEIGHT = 0.1, 0.1


class Modulation(Product):
    """Last layer W c + b of the conditioning, which begins with W = 0 and b = 0."""


class LoopConditioning(nn.Module):
    """Map from the time and the step of a loop to gains and scales of the layers of the core.

    Args:
        width: Width D of the states.
        layers: Number C of layers.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.width = width
        self.time_embedding, self.step_embedding = (
            nn.Sequential(Product(_SINUSOIDS, width), nn.SiLU(), Product(width, width)) for _ in range(2)
        )
        self.modulation = Modulation(width, 4 * layers * width)

    def forward(self, steps: Tensor, states: Tensor) -> Tensor:
        """Return gain and scale of attention, then gain and scale of the feed-forward layer, (N, C, 4, D).

        Args:
            steps: Step of every loop, float64 (N,), on the CPU.
            states: Tensor with the device and dtype of the result.
        """
        times = steps.cumsum(dim=0) - steps
        features = [upload(compute_sinusoids(values).to(states.dtype), states.device) for values in (times, steps)]
        embedded = self.time_embedding(features[0]) + self.step_embedding(features[1])
        return self.modulation(nn.functional.silu(embedded)).view(len(steps), -1, 4, self.width)


def compute_sinusoids(values: Tensor) -> Tensor:
    """Return the cosines, then the sines of v 10000^(-i/128), i = 0..127, of values v, (N,), as (N, 256)."""
    half = _SINUSOIDS // 2
    rates = torch.exp(torch.arange(half, dtype=values.dtype) * (-math.log(_LONGEST) / half))
    angles = values.unsqueeze(1) * rates
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def compute_equal_steps(loops: int) -> Tensor:
    """Return the steps 1/N of a schedule of N loops, float64 (N,)."""
    return torch.full((loops,), 1.0 / loops, dtype=torch.float64)


def draw_short_steps(most: int, seed: int, step: int | None) -> Tensor:
    """Draw the steps of a short schedule, float64 (L,): L ~ U{1..N-1}, then uniform among all that sum to 1.

    All texts of an optimiser step have the same schedule, so a resumed run draws what an uninterrupted one draws, and
    no division into micro-batches or processes changes it.

    Args:
        most: Number N of loops of the long schedule, at least 2.
        seed: Seed, the setting `draw_seed`.
        step: Number of completed optimiser steps, or None to draw from torch's global generator.
    """
    generator = None if step is None else torch.Generator().manual_seed(seed * 1_000_003 + step)
    loops = int(torch.randint(1, most, (), generator=generator))
    cuts = torch.rand(loops - 1, generator=generator, dtype=torch.float64).sort().values
    return torch.cat([cuts.new_zeros(1), cuts, cuts.new_ones(1)]).diff()


def compute_distances(long: Tensor, short: Tensor) -> Tensor:
    """Return |sg(r_long) - r_short|^2 / D, float32 (K,), of head inputs, (K, D) each, after the last loops."""
    return (long.detach().float() - short.float()).square().mean(dim=-1)


def elastic_terms(losses: Tensor, distances: Tensor, weights: Tensor) -> dict[str, LossTerm]:
    """Compute the parts of the loss that the short schedule adds, summed over K targets.

    Args:
        losses: Losses after the short schedule, (K,).
        distances: Distances of `compute_distances`, (K,).
        weights: Weight of every target, (K,).
    """
    weights = weights.float()
    count = weights.sum()
    return {
        "short": LossTerm((losses * weights).sum(), count, _SHORT_WEIGHT),
        "consistency": LossTerm((distances * weights).sum(), count, _CONSISTENCY_WEIGHT),
    }
