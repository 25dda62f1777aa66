"""Fitting a trained model to a depth: by bisection, on a knob that makes the model deeper as it is turned up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

# The knob is a probability-like level in (0, 1): the search is over its logit, since what matters lies near the ends.
_LOWEST, _HIGHEST = -9.0, 13.0
_STEPS = 14
_TOLERANCE = 0.005


class Fit(NamedTuple):
    """A level, the depth that was measured at it, and whether that is the target's to within the tolerance."""

    level: float
    depth: float
    is_reached: bool


def fit_level(measure: Callable[[float], float], target: float, tolerance: float = _TOLERANCE) -> Fit:
    """The level at which a depth is measured that is nearest to the target.

    Args:
        measure: The depth at a level in (0, 1); does not fall as the level rises.
        target: The depth that is wanted, above 0.
        tolerance: A share of the target; nearer than that the search ends.
    """
    low, high = _LOWEST, _HIGHEST
    tried: list[Fit] = []
    for step in range(_STEPS):
        # The ends first: a target beyond what the model does at either is answered at once.
        middle = (low, high)[step] if step < 2 else (low + high) / 2
        level = 1.0 / (1.0 + math.exp(-middle))
        depth = measure(level)
        tried.append(Fit(level, depth, abs(depth - target) <= tolerance * target))
        if tried[-1].is_reached or (step == 0 and depth > target) or (step == 1 and depth < target):
            break
        if step < 2:
            continue
        low, high = (middle, high) if depth < target else (low, middle)
    return min(tried, key=lambda found: abs(found.depth - target))
