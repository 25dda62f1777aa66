"""Full depth in the unit of a budget, and whether one was met: a measured depth is its target within a tolerance."""

from __future__ import annotations

NO_BUDGET = "budget=none budget.target=null"  # the overrides that take a target back, wherever it was given
TOLERANCE = 0.05  # a share of the target
# Units in which nothing may be deeper than the target once the schedule has come to it; less is within the budget, too.
CEILINGS = frozenset({"deepest_layer"})


def is_held(measured: float, target: float, unit: str) -> bool:
    """Whether a measured depth is the target's to within the tolerance; under a ceiling, or below it."""
    error = measured - target
    return (error if unit in CEILINGS else abs(error)) <= TOLERANCE * target


def full_in(unit: str, most_updates: float | None) -> float | None:
    """Full depth where a unit of the model gets so many updates.

    Args:
        unit: A `BudgetUnit`.
        most_updates: N; None where only the model knows.

    Returns:
        1 of the work, which is a share; N of updates and layers; None where only the model knows: milliseconds are
        measured, and so is an N that a pretrained model decides.
    """
    if unit == "milliseconds":
        return None
    return 1.0 if unit == "macs" else most_updates
