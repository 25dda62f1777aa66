"""A target for the time of a searched network: whether it can be reached, and whether the network came to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.config import BudgetConfig
from adadepth.errors import ConfigError
from adadepth.families.par_xl.architectures import OPERATIONS, most_probable_at_cost
from adadepth.families.par_xl.configuration import ParXLConfig
from adadepth.families.par_xl.modeling import ParXLSupernet
from adadepth.training.budget import TOLERANCE


def check_latency(budget: BudgetConfig, model: ParXLConfig) -> None:
    """Whether any network of these blocks takes as long.

    Raises:
        ConfigError: If the target is beyond the dearest one.
    """
    assert model.operation_costs is not None
    blocks = model.num_hidden_layers
    dearest = max(model.latency_of(operation * blocks) for operation in OPERATIONS)
    if budget.target is not None and budget.target > dearest:
        raise ConfigError(
            f"budget.target={budget.target:g}: {blocks} blocks of the dearest operation take {dearest:.3g} ms here; "
            f"attention and feed-forward in turn {model.full_latency:.3g} ms"
        )


def within_budget(supernet: ParXLSupernet, budget: BudgetConfig) -> str | None:
    """The most probable architecture that takes as long as the budget says; None without one.

    The controller brings the most probable operations near the target, and single blocks may still cross it when the
    search ends. Where those operations lie within 5 % of the target, they are what is found here.
    """
    if budget.target is None:
        return None
    costs = supernet.config.operation_costs
    assert costs is not None
    probabilities = supernet.gate_probabilities().tolist()
    return most_probable_at_cost(probabilities, [1e3 * cost for cost in costs], budget.target, TOLERANCE)


def describe_latency(supernet: ParXLSupernet, architecture: str, target: float) -> dict[str, Any]:
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
        "is_held": abs(derived - target) <= TOLERANCE * target,
    }


def latency_line(latency: Mapping[str, Any]) -> str:
    """The same as a line of the console."""
    derived, target, probable = (f"{latency[name]:.3g} ms" for name in ("derived", "target", "most_probable"))
    found = f"latency: the blocks take {derived} for a target of {target}"
    if not latency["is_held"]:
        found += f", more than {TOLERANCE:.0%} away: no architecture of as many blocks is nearer"
    return f"{found}; the most probable operations take {probable}, {latency['string']}"
