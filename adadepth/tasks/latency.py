"""A target for the time of a searched network: whether it can be reached, and whether the network came to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.budget.held import TOLERANCE, is_held
from adadepth.config import BudgetConfig
from adadepth.errors import ConfigError
from adadepth.families.contract import SearchesArchitecture


def check_latency(budget: BudgetConfig, supernet: SearchesArchitecture) -> None:
    """Whether any network of its blocks takes as long.

    Raises:
        ConfigError: If the target is beyond the dearest one.
    """
    dearest, full = supernet.config.dearest_latency, supernet.config.full_latency
    if budget.target is not None and budget.target > dearest:
        raise ConfigError(
            f"budget.target={budget.target:g}: all blocks of the dearest operation take {dearest:.3g} ms here; "
            f"the full network takes {full:.3g} ms"
        )


def within_budget(supernet: SearchesArchitecture, budget: BudgetConfig) -> str | None:
    """The most probable architecture that takes as long as the budget says; None without one.

    The controller brings the most probable operations near the target, and single blocks may still cross it when the
    search ends. Where those operations lie within 5 % of the target, they are what is found here.
    """
    return None if budget.target is None else supernet.most_probable_within(budget.target, TOLERANCE)


def describe_latency(supernet: SearchesArchitecture, architecture: str, target: float) -> dict[str, Any]:
    """What run.json tells of a derived network's time, in milliseconds of all its blocks.

    Args:
        supernet: With the costs that the search has seen.
        architecture: The derived one.
        target: What the user asked for.

    Returns:
        `target`, `derived`, `most_probable` (of the operations that are most probable in every block, and `string`,
        which those are), and `is_held`: within 5 %. Where it is not, `derived` is the nearest that these blocks allow.
    """
    derived, string = supernet.config.latency_of(architecture), supernet.architecture()
    return {
        "target": target,
        "derived": derived,
        "most_probable": supernet.config.latency_of(string),
        "string": string,
        "is_held": is_held(derived, target, "milliseconds"),
    }


def latency_line(latency: Mapping[str, Any]) -> str:
    """The same as a line of the console."""
    derived, target, probable = (f"{latency[name]:.3g} ms" for name in ("derived", "target", "most_probable"))
    found = f"latency: the blocks take {derived} for a target of {target}"
    if not latency["is_held"]:
        found += f", more than {TOLERANCE:.0%} away: no architecture of as many blocks is nearer"
    return f"{found}; the most probable operations take {probable}, {latency['string']}"
