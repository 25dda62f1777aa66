"""Costs of exit rules, and their Pareto sets of cost and quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.metrics.task_metrics import get_metric_key

ORACLE = "oracle"  # the first right step
SETTLED = "oracle:stays"  # the first step from which on all are right
CONTROL = "control"  # kind of a fixed step that was not listed
X_AXES = ("mean_updates", "macs")


def warnings(study: Mapping[str, Any]) -> list[str]:
    """Collect the distinct warnings of an exit-rule comparison, one line each, with the names of the rules."""
    rules: dict[str, list[str]] = {}
    for row in study["rows"]:
        if "warning" in row:
            rules.setdefault(row["warning"], []).append(row["rule"])
    return [f"{warning} ({', '.join(names)})" for warning, names in rules.items()]


def select_rules_without_labels(study: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of an exit-rule comparison without the oracles, which cannot be run without labels."""
    return [row for row in study["rows"] if row["kind"] != "ceiling"]


def batches(study: Mapping[str, Any]) -> list[str]:
    """Return the batch sizes at which exit rules were timed, in increasing order."""
    return sorted({batch for row in study["rows"] for batch in row.get("seconds", {})}, key=int)


def mark_pareto(study: Mapping[str, Any]) -> dict[str, Any]:
    """Store in every exit rule's row the cost measures (updates, compute, time) in which it is Pareto-optimal.

    The oracles are excluded, because they cannot be run without labels.
    """
    axes = [*X_AXES, *(f"seconds/{batch}" for batch in batches(study))]
    rows = [{**row, "pareto": []} for row in study["rows"]]
    for axis in axes:
        points = [None if row["kind"] == "ceiling" else _point(row, axis) for row in rows]
        for row, is_best in zip(rows, pareto(points), strict=True):
            row["pareto"] += [axis] if is_best else []
    return {**study, "rows": rows}


def row_cost(row: Mapping[str, Any], axis: str) -> float | None:
    """Return the cost of an exit rule in updates, compute or time, or None if it was not measured.

    The axis is `mean_updates`, `macs` or `seconds/<batch>`.
    """
    name, _, batch = axis.partition("/")
    value = row.get(name, {}).get(batch) if batch else row.get(name)
    return None if value is None else float(value)


def _point(row: Mapping[str, Any], axis: str) -> tuple[float, float] | None:
    x, y = row_cost(row, axis), row["quality"].get("score")
    return None if x is None or y is None else (x, y)


def pareto(points: Sequence[tuple[float, float] | None]) -> list[bool]:
    """Return for each point (cost, quality) whether it is Pareto-optimal. None counts as not optimal.

    A point dominates another if it costs no more, is no worse, and differs in one of the two.
    """
    measured = {point for point in points if point is not None}

    def is_dominated(cost: float, quality: float) -> bool:
        return any(x <= cost and y >= quality and (x, y) != (cost, quality) for x, y in measured)

    return [point is not None and not is_dominated(*point) for point in points]


def name_units(figures: Mapping[str, Any]) -> str:
    """Return the plural noun for what exits: tokens or sequences; earlier versions did not record which.

    Args:
        figures: Step summary, or study of exit rules, of one set.
    """
    return f"{figures.get('unit', 'example')}s"


def format_score_title(study: Mapping[str, Any]) -> str:
    """Format the display name of the metric `score`, with the metrics that it averages."""
    if study["problem"] == "language_model":
        return "score (minus the loss, nats)"
    names = ", ".join(get_metric_key(name) for name in study["metrics"])
    return f"score ({names})" if len(study["metrics"]) == 1 else f"score (mean of {names})"


def format_pareto_axes(row: Mapping[str, Any]) -> str:
    """Format the cost measures in which a rule is Pareto-optimal, such as `updates, MACs, time 1/8/32`."""
    if row["kind"] == "ceiling":
        return "uses the labels"
    names = [short for axis, short in (("mean_updates", "updates"), ("macs", "MACs")) if axis in row["pareto"]]
    timed = [axis.partition("/")[2] for axis in row["pareto"] if axis.startswith("seconds/")]
    return ", ".join([*names, *([f"time {'/'.join(timed)}"] if timed else [])])
