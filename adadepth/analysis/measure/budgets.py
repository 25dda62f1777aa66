"""One checkpoint at several depths: the rows of budgets.json, and what is drawn of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WORK = ("executed_over_full", "adaptive_over_full")
# Metrics that say how good a model is: the first that a task has is drawn; of a loss, less is better.
_QUALITIES = ("score", "mlm_loss", "loss")


def budget_row(
    metrics: Mapping[str, float],
    statistics: Mapping[str, Any],
    target: float | None,
    fit: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """A checkpoint at one depth.

    Args:
        metrics: Of the evaluation.
        statistics: From `HaltingStatistics.summary`.
        target: The depth that was asked for; None: the checkpoint as it was trained.
        fit: `level` of the knob, `depth` on the examples it was fitted on, `is_reached`; None as above.
    """
    everyone, cost = statistics["classes"]["all"], statistics["cost"]
    depths = {name: everyone[name] for name in ("mean", "std") if name in everyone}
    work = {name: cost[name] for name in _WORK if name in cost}
    return {"target": target, "fit": None if fit is None else dict(fit), **depths, **work, "metrics": dict(metrics)}


def drawn_quality(found: Mapping[str, Any]) -> str | None:
    """The metric that stands for quality in the curve."""
    metrics = found["rows"][0]["metrics"]
    return next((name for name in _QUALITIES if name in metrics), None)


def quality_points(found: Mapping[str, Any]) -> list[tuple[float, float]]:
    """(mean depth, quality) of every row, by depth."""
    name = drawn_quality(found)
    return sorted((row["mean"], row["metrics"][name]) for row in found["rows"] if name in row["metrics"])


def budget_label(row: Mapping[str, Any]) -> str:
    """What a row is, in words."""
    if row["target"] is None:
        return "as trained"
    return f"{row['target']:g}" + ("" if row["fit"]["is_reached"] else " (nearest)")


def rival_columns(found: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of an adaptive run and its rivals: depth, work as a multiple of the adaptive run's, quality."""
    reference = found["rows"][0]
    names = [name for name in reference["metrics"] if any(name.endswith(end) for end in _RIVAL_METRICS)]
    rows = [
        [
            f"{row['kind']} {row['max_depth']}" if row["kind"] != "adaptive" else "adaptive",
            row["mean"],
            row["std"],
            row["executed_macs"] / reference["executed_macs"],
            *(row["metrics"].get(name) for name in names),
        ]
        for row in found["rows"]
    ]
    return ["network", "depth", "sd", "work", *(name.removeprefix("eval/") for name in names)], rows


_RIVAL_METRICS = ("/score", "/mlm_loss", "/task_loss")
