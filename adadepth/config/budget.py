"""A mean depth that training holds."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.declaration import POSITIVE, SHARE, at_least, setting

BudgetUnit = StrEnum("BudgetUnit", ["updates", "macs", "deepest_layer", "expected_layer", "milliseconds"])


@dataclass
class BudgetConfig:
    """Depth as something one sets: a mean that training holds, instead of a penalty whose outcome nobody knows."""

    target: float | None = setting(None, "mean depth of a unit, in `unit`; None: no budget", POSITIVE)
    unit: BudgetUnit = setting(BudgetUnit.updates, "of a token or sequence; docs/budget.md lists the others")
    grow: float = setting(
        0.0, "share of all updates, at first, in which nobody halts and depth grows from `grow_from` to full", SHARE
    )
    grow_from: int = setting(2, "updates of everybody in the first of them", at_least(1))
    hold: float = setting(0.15, "share of all updates at full depth after that", SHARE)
    ramp: float = setting(0.25, "share of all updates on the way from full depth to `target`", SHARE)
    gain: float = setting(1.0, "how hard the controller pulls", POSITIVE)
    targets: list[float] = setting([], "mode=evaluate: fit the checkpoint to each of these, in `unit`")
