"""Full depth in the unit of a budget: what `budget.target` may be at most."""

from __future__ import annotations


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
