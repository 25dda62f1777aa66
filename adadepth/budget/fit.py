"""Bisection search for the exit threshold at which a trained model reaches a target mean depth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

# The level lies in (0, 1). The search is over its logit, because depth changes most near the ends.
_LOWEST, _HIGHEST = -9.0, 13.0
_STEPS = 14
_TOLERANCE = 0.005


class Fit(NamedTuple):
    """Result of fitting an exit threshold to a target depth: level, measured depth, and whether it meets the target."""

    level: float
    depth: float
    is_reached: bool


def fit_level(measure: Callable[[float], float], target: float, tolerance: float = _TOLERANCE) -> Fit:
    """Find the threshold level whose measured depth is nearest to a target depth, by bisection.

    Args:
        measure: Function from a level in (0, 1) to a depth, which must not fall as the level rises.
        target: Target depth, above 0.
        tolerance: Relative distance from the target at which the search ends.
    """
    low, high = _LOWEST, _HIGHEST
    tried: list[Fit] = []
    for step in range(_STEPS):
        # The ends come first, so that a target out of reach ends the search at once.
        middle = (low, high)[step] if step < 2 else (low + high) / 2
        level = 1.0 / (1.0 + math.exp(-middle))
        depth = measure(level)
        tried.append(Fit(level, depth, abs(depth - target) <= tolerance * target))
        if tried[-1].is_reached or (step == 0 and depth > target) or (step == 1 and depth < target):
            break
        if step < 2:
            continue
        low, high = (middle, high) if depth < target else (low, middle)
    return min(tried, key=lambda fit: abs(fit.depth - target))
