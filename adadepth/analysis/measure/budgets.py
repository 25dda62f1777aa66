"""One checkpoint at several depths: the rows of budgets.json, and what is drawn of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.render.formats import rounded
from adadepth.analysis.render.table import Column, Table, as_text, text

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


def budget_table(found: Mapping[str, Any]) -> Table:
    """A checkpoint at several depths; work as a share of full depth.

    Args:
        found: What budgets.json holds.
    """
    columns = [
        Column("row", "target", text, "text", where="view"),
        *(Column(key, where="file") for key in ("target", "level", "fitted")),
        Column("mean", "depth", rounded(2)), Column("std", "sd", rounded(2)),
        Column("executed_over_full", where="file"), Column("adaptive_over_full", "work", rounded(3)),
        *(Column(name, name, rounded(4)) for name in found["rows"][0]["metrics"]),
    ]  # fmt: skip
    rows = [
        {**row["metrics"], **row, "row": budget_label(row), "level": (row["fit"] or {}).get("level"),
         "fitted": (row["fit"] or {}).get("depth")}
        for row in found["rows"]
    ]  # fmt: skip
    return Table("budgets", columns, rows)


def budgets_text(found: Mapping[str, Any]) -> str:
    """One checkpoint at several depths as text.

    Args:
        found: What budgets.json holds.
    """
    header = (
        f"one checkpoint at several depths ({found['unit']}), by {found['knob']}: fitted on {found['fitted_on']:,} "
        f"examples of {found['set']}, measured on {found['measured_on']:,} others; work as a share of full depth"
    )
    return f"{header}\n\n{as_text(budget_table(found))}"


def rival_table(found: Mapping[str, Any]) -> Table:
    """An adaptive run and its rivals: depth, work as a multiple of the adaptive run's, quality.

    Args:
        found: What rivals.json holds.
    """
    reference = found["rows"][0]
    names = [name for name in reference["metrics"] if any(name.endswith(end) for end in _RIVAL_METRICS)]
    columns = [
        Column("network", "network", text, "text"),
        Column("mean", "depth", rounded(4)), Column("std", "sd", rounded(4)), Column("work", "work", rounded(4)),
        *(Column(name, name.removeprefix("eval/"), rounded(4)) for name in names),
    ]  # fmt: skip
    rows = [
        {**row["metrics"], **row, "work": _work(row) / _work(reference),
         "network": "adaptive" if row["kind"] == "adaptive" else f"{row['kind']} {row['max_depth']}"}
        for row in found["rows"]
    ]  # fmt: skip
    return Table("rivals", columns, rows)


def _work(row: Mapping[str, Any]) -> float:
    """What the depths of a network need; of older comparisons what its evaluation executed."""
    found: float = row["adaptive_macs"] if "adaptive_macs" in row else row["executed_macs"]
    return found


def rivals_text(found: Mapping[str, Any]) -> str:
    """An adaptive run beside its rivals as text.

    Args:
        found: What rivals.json holds.
    """
    return f"rivals of equal work (work as a multiple of the adaptive run's):\n\n{as_text(rival_table(found))}"


_RIVAL_METRICS = ("/score", "/mlm_loss", "/task_loss")
