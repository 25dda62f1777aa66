"""Depth and accuracy by difficulty, for data sets that know how much computing a unit needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.render import charts
from adadepth.analysis.render.sections import curve

Curves = list[tuple[str, list[tuple[int, float]]]]


def difficulty_sets(halting: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is known of difficulty by name of the evaluated set, the selecting one first."""
    found = {str(halting.get("set", "all")): halting.get("difficulty")}
    found |= {name: other.get("difficulty") for name, other in halting.get("further_sets", {}).items()}
    return {name: described for name, described in found.items() if described and described["rows"]}


def difficulty_curves(halting: Mapping[str, Any], key: str) -> Curves:
    """A curve of `mean` or `accuracy` over difficulty for every set that has one."""
    curves = [(name, curve(found["rows"], "difficulty", key)) for name, found in difficulty_sets(halting).items()]
    return [(name, points) for name, points in curves if points]


def difficulty_section(halting: Mapping[str, Any]) -> dict[str, Any] | None:
    """Charts, correlations and tables; None where no difficulty is known."""
    sets = difficulty_sets(halting)
    if not sets:
        return None
    return {"charts": list(_charts(halting)), "sets": sets}


def _charts(halting: Mapping[str, Any]) -> list[tuple[str, Any]]:
    unit, deepest = halting["unit"], halting["max_depth"]
    means, accuracies = difficulty_curves(halting, "mean"), difficulty_curves(halting, "accuracy")
    known = [x for _, points in means for x, _ in points]
    span = (min(known) - 0.5, max(known) + 0.5)
    ticks = charts.ticks(*span, count=8, whole=True)
    heights = (0.5, deepest + 0.5)
    frame = charts.Frame(span, heights, "difficulty", "mean depth (updates)", ticks, charts.depth_ticks(deepest))
    drawn = [("Mean depth by difficulty", charts.line_chart(frame, means, f"Mean depth of {unit}s by difficulty"))]
    if accuracies:
        frame = charts.Frame(span, (0, 1), "difficulty", "accuracy", ticks, percent=True)
        drawn.append(("Accuracy by difficulty", charts.line_chart(frame, accuracies, "Accuracy by difficulty")))
    return drawn
