"""Does depth adapt at all? A verdict on the spread of depths, overall and within classes, and what may help."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# Depths that are used as much as so many equally frequent ones: 1 is one depth for everybody.
FEWEST, FEWEST_WITHIN = 1.5, 1.15


def describe_adaptation(classes: Mapping[str, Mapping[str, Any]], unit: str) -> dict[str, Any]:
    """How many depths are really used.

    The exponential of a distribution's entropy is the number of equally frequent values that are as varied.

    Args:
        classes: Described classes by name, `all` among them, with `n` and `entropy` (nats).
        unit: What halts.

    Returns:
        `effective_depths` of all units; `effective_depths_within`: the mean over classes, weighted by their units,
        where there are any; and `warning`, one line, where depth does not adapt.
    """
    everyone = classes["all"]
    if "entropy" not in everyone or unit not in ("token", "sequence"):
        return {}
    found: dict[str, Any] = {"effective_depths": math.exp(everyone["entropy"])}
    others = [described for name, described in classes.items() if name != "all" and described["n"]]
    if others:
        units = sum(described["n"] for described in others)
        found["effective_depths_within"] = sum(d["n"] * math.exp(d["entropy"]) for d in others) / units
    if found["effective_depths"] < FEWEST:
        shown = f"{everyone['mean']:.2f} +- {everyone['std']:.2f} updates, as varied as"
        found["warning"] = f"depth does not adapt ({shown} {found['effective_depths']:.2f} depths)"
    elif found.get("effective_depths_within", math.inf) < FEWEST_WITHIN:
        within = found["effective_depths_within"]
        found["warning"] = f"depth differs between classes only (by {within:.2f} within)"
    return found
