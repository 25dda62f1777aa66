"""Whether a budget was met: a measured depth is its target, to within a tolerance."""

from __future__ import annotations

TOLERANCE = 0.05  # a share of the target


# Units in which nothing may be deeper than the target once the schedule has come to it; less is within the budget, too.
CEILINGS = frozenset({"deepest_layer"})


def is_held(measured: float, target: float, unit: str) -> bool:
    """Whether a measured depth is the target's to within the tolerance; under a ceiling, or below it."""
    error = measured - target
    return (error if unit in CEILINGS else abs(error)) <= TOLERANCE * target
