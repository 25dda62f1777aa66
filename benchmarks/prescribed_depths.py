"""Depths that a benchmark prescribes for the tokens of an untrained ACT-ALBERT."""

import math

import torch
from torch import Tensor

from adadepth import AlbertActModel


def compute_distribution(mean: float, max_updates: int, spread: float) -> Tensor:
    """Return the probabilities of the depths 1..max_updates.

    p(n) ~ exp(a n - (n / spread)^2 / 2), with `a` that gives the mean. Under an infinite spread it is the truncated
    geometric distribution.
    """
    depths = torch.arange(1, max_updates + 1, dtype=torch.float64)
    low, high = -100.0, 100.0
    for _ in range(100):
        slope = (low + high) / 2
        shares = (slope * depths - (depths / spread) ** 2 / 2).softmax(0)
        low, high = (slope, high) if shares @ depths < mean else (low, slope)
    return shares


def draw_depths(valid: Tensor, mean: float, max_updates: int, flat: bool) -> Tensor:
    """Draw the depth of every token, int64 (B, T): shuffled quantiles of the distribution, first tokens at the cap.

    Args:
        valid: True at real tokens, (B, T); padding gets depth 0.
        mean: Mean depth of all real tokens.
        max_updates: The largest depth.
        flat: Take the truncated geometric distribution instead of a bell. The bell's spread is a third of its mean, as
            in the example of ACT-ALBERT's model card (mean 8.1, standard deviation 2.8).
    """
    later_tokens = valid.clone()
    later_tokens[:, 0] = False
    count = int(later_tokens.sum())
    rest = (mean * int(valid.sum()) - max_updates * len(valid)) / count
    shares = compute_distribution(rest, max_updates, math.inf if flat else rest / 3)
    quantiles = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    later_depths = torch.searchsorted(shares.cumsum(0), quantiles).clamp(max=max_updates - 1) + 1
    depths = torch.where(valid, max_updates, 0)
    depths[later_tokens] = later_depths[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    return depths


def prescribe_depths(model: AlbertActModel, depths: Tensor) -> None:
    """Let every token halt at the depth given, while the halting unit is still computed and still gets a gradient."""
    encoder = model.encoder
    # N updates of p reach the threshold 1 - epsilon, and N - 1 do not.
    table = ((1.0 - model.config.act_epsilon) / (depths.clamp(min=1) - 0.5)).float().to(model.device)
    compute = encoder.halting_probability

    def halting_probability(probability: Tensor, valid: Tensor, slots: Tensor | None = None) -> Tensor:
        computed = compute(probability, valid, slots)
        prescribed = table if slots is None else table.flatten()[slots]
        return prescribed + (computed - computed.detach())

    encoder.halting_probability = halting_probability
