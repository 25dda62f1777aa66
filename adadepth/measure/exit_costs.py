"""What an exit rule costs, and which rules no other beats at less work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.measure.quality import metric_key

ORACLE = "oracle"  # right for the first time
SETTLED = "oracle:stays"  # right from here on


X_AXES = ("mean_updates", "macs")


def warnings(found: Mapping[str, Any]) -> list[str]:
    """What is odd about rules, one line for all rules of which the same is to be said."""
    rules: dict[str, list[str]] = {}
    for row in found["rows"]:
        if "warning" in row:
            rules.setdefault(row["warning"], []).append(row["rule"])
    return [f"{warning} ({', '.join(names)})" for warning, names in rules.items()]


def batches(found: Mapping[str, Any]) -> list[str]:
    """The batch sizes that were timed, increasing."""
    return sorted({batch for row in found["rows"] for batch in row.get("seconds", {})}, key=int)


def mark_pareto(found: Mapping[str, Any]) -> dict[str, Any]:
    """Name in every row the axes of cost on which no other row is at least as good and as cheap, and better in one.

    The oracles take no part: nobody can run them.
    """
    axes = [*X_AXES, *(f"seconds/{batch}" for batch in batches(found))]
    rows = [{**row, "pareto": []} for row in found["rows"]]
    for axis in axes:
        points = [None if row["kind"] == "ceiling" else _point(row, axis) for row in rows]
        for row, is_best in zip(rows, pareto(points), strict=True):
            row["pareto"] += [axis] if is_best else []
    return {**found, "rows": rows}


def row_cost(row: Mapping[str, Any], axis: str) -> float | None:
    """A row's cost on an axis: `mean_updates`, `macs` or `seconds/<batch>`; None if it was not measured."""
    name, _, batch = axis.partition("/")
    value = row.get(name, {}).get(batch) if batch else row.get(name)
    return None if value is None else float(value)


def _point(row: Mapping[str, Any], axis: str) -> tuple[float, float] | None:
    x, y = row_cost(row, axis), row["quality"].get("score")
    return None if x is None or y is None else (x, y)


def pareto(points: Sequence[tuple[float, float] | None]) -> list[bool]:
    """Which points (cost, quality) no other one dominates; None takes no part and is never in the set.

    A point dominates another if it costs no more, is no worse, and differs in one of the two.
    """

    def dominated(point: tuple[float, float]) -> bool:
        return any(
            other is not None and other != point and other[0] <= point[0] and other[1] >= point[1] for other in points
        )

    return [point is not None and not dominated(point) for point in points]


def score_title(study: Mapping[str, Any]) -> str:
    """The title of `score`, with the metrics that it is the mean of; of a text it is minus the loss."""
    if study["problem"] == "language_model":
        return "score (minus the loss, nats)"
    names = ", ".join(metric_key(name) for name in study["metrics"])
    return f"score ({names})" if len(study["metrics"]) == 1 else f"score (mean of {names})"


def in_pareto_sets(row: Mapping[str, Any]) -> str:
    """On which axes of cost a row is in the Pareto set, in short: `updates, MACs, time 1/8/32`."""
    if row["kind"] == "ceiling":
        return "not a system"
    names = [short for axis, short in (("mean_updates", "updates"), ("macs", "MACs")) if axis in row["pareto"]]
    timed = [axis.partition("/")[2] for axis in row["pareto"] if axis.startswith("seconds/")]
    return ", ".join([*names, *([f"time {'/'.join(timed)}"] if timed else [])])
