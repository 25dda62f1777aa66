"""Target of a budget: full depth in its unit, and the tolerance within which a measured depth meets it."""

from __future__ import annotations

NO_BUDGET = "budget=none budget.target=null"  # the overrides that remove a target from any configuration
TOLERANCE = 0.05  # a share of the target
# Units whose target is an upper limit: a smaller depth is within the budget too.
CEILINGS = frozenset({"deepest_layer"})


def is_held(measured: float, target: float, unit: str) -> bool:
    """Return whether a measured depth meets its target within the tolerance; a smaller one meets an upper limit."""
    error = measured - target
    return (error if unit in CEILINGS else abs(error)) <= TOLERANCE * target


def get_full_depth(unit: str, most_updates: float | None) -> float | None:
    """Return full depth in the unit of a budget.

    Args:
        unit: Unit of the budget, a `BudgetUnit`.
        most_updates: Largest number of updates N; None if it depends on the model.

    Returns:
        1 for compute, which is a share; N for updates and layers; None if it must be measured, as milliseconds and the
        N of a pretrained model.
    """
    if unit == "milliseconds":
        return None
    return 1.0 if unit == "macs" else most_updates
