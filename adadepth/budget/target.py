"""Full depth of a model in the unit of its depth budget, and the tolerance of a depth target."""

from __future__ import annotations

NO_BUDGET = "budget=none budget.target=null"  # the overrides that remove a target from any configuration
TOLERANCE = 0.05  # a share of the target
# Units whose target is an upper limit: a smaller depth is within the budget too.
CEILINGS = frozenset({"deepest_layer"})


def is_held(measured: float, target: float, unit: str) -> bool:
    """Return whether a measured depth meets its target within the tolerance.

    If the target is an upper limit, any smaller depth meets it too.
    """
    error = measured - target
    return (error if unit in CEILINGS else abs(error)) <= TOLERANCE * target


def get_full_depth(unit: str, most_updates: float | None) -> float | None:
    """Return the depth of a model without halting, in the unit of its depth budget, or None if it must be measured.

    Args:
        unit: Unit in which the budget is measured, a `BudgetUnit`.
        most_updates: Largest number of updates N, or None if it depends on the model.

    Returns:
        1 for compute, which is measured as a share of full compute, and N for updates and layers. None if full depth
        must be measured, as for milliseconds or for a pretrained model with unknown N.
    """
    if unit == "milliseconds":
        return None
    return 1.0 if unit == "macs" else most_updates
