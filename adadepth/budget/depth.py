"""A smooth stand-in for a hard depth: what a budget's price is paid on.

A hard depth N counts the steps that a unit survives, N = 1 + sum_{1 <= n < N} 1[s_n > 0] with the survival s_n, and has
no gradient. Its smooth form raises the survivals to a small power instead:

    S = 1 + sum_{1 <= n < N} s_n^a,        0 < a <= 1

With a = 1 this is the expected depth, and a model can lower it while every unit still runs to the cap (many small
probabilities, each of them far from a decision); with a -> 0 it is N itself. a = 0.3 was near enough to N for a
controller to hold N, and smooth enough to train (docs/decisions/0013).

Shape legend: ... any leading dimensions, N steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

EXPONENT = 0.3
# Below this a survival is as good as none: the power's gradient, a s^(a-1), has no bound at zero.
_SMALLEST = 1e-3


def smooth_depth(survival: Tensor, ran: Tensor | None = None, exponent: float = EXPONENT) -> Tensor:
    """The sum of powered survivals of every unit, float32, (...).

    Args:
        survival: s_n, the share of a unit that goes on after step n, (..., N); for ACT 1 - h_n, for a distribution over
            steps or layers 1 - cdf_n.
        ran: Steps after which the unit really went on, boolean, (..., N); None: all, for units that run every step.
        exponent: a.
    """
    powered = survival.float().clamp(min=_SMALLEST, max=1.0) ** exponent
    return powered.sum(dim=-1) if ran is None else torch.where(ran, powered, 0.0).sum(dim=-1)
