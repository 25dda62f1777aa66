"""Report sections on depth budgets: a checkpoint fitted to several depths, and the budget controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adadepth.metrics.metric_names import PREFERRED_QUALITIES, drop_losses_of_other_depths
from adadepth.metrics.unit_costs import (
    UNIT_COST_TITLES,
    WITHOUT_PREDICTIONS,
    compute_share_with_predictions,
    format_count,
    has_separate_predictions,
    name_compute,
)
from adadepth.report.compute_cost import format_rule
from adadepth.report.figure import Axis, Figure, Lines, Panel, build_line_panel, pad_range
from adadepth.report.run_files import BUDGETS, BUDGETS_TABLE, RunFiles, series, write_json
from adadepth.report.section import Section, SectionEntry, fill
from adadepth.report.table import Column, Table, make_number_format, text, to_csv, to_text
from adadepth.report.training_curves import format_loss_title
from adadepth.report.verdict import target
from adadepth.runtime.files import write_atomic

_UNIT_COSTS = {name.removeprefix("cost/"): title for name, title in UNIT_COST_TITLES.items()}
_WORK = ("adaptive_macs", "executed_over_full", "adaptive_over_full", *_UNIT_COSTS)


def build_budget_row(
    metrics: Mapping[str, float],
    statistics: Mapping[str, Any],
    target: float | None,
    fit: Mapping[str, Any] | None,
    rule: str | None = None,
) -> dict[str, Any]:
    """Build the table row of a checkpoint that was evaluated at one mean depth.

    Args:
        metrics: Metrics of the evaluation.
        statistics: Result of `HaltingStatistics.summary`.
        target: The requested depth, or None for the checkpoint as it was trained.
        fit: `level` of the threshold that sets the depth, `depth` on the examples used for fitting, and `is_reached`.
            None for the checkpoint as it was trained.
        rule: Exit rule of the evaluation, with its threshold, or None without one.

    Returns:
        `target`, `fit`, `rule` (if there is one) and `metrics`, without losses of other depths; `n` units with `mean`
        and `std` of their depths; the compute of all units as `adaptive_macs`, as a share of full depth and for each
        token or sequence, with the milliseconds of a token; `prediction_macs`, the compute of one prediction, which
        they leave out; `share_with_predictions`, the share of full depth with all predictions; and `spearman`, if the
        data have a difficulty.
    """
    everyone, cost = statistics["classes"]["all"], statistics["cost"]
    row: dict[str, Any] = {"target": target, "fit": None if fit is None else dict(fit)}
    row |= {} if rule is None else {"rule": rule}
    row |= {name: everyone[name] for name in ("n", "mean", "std") if name in everyone}
    row |= {name: cost[name] for name in _WORK if name in cost}
    if "prediction_macs" in statistics:
        row["prediction_macs"] = statistics["prediction_macs"]
    if (share := compute_share_with_predictions(statistics)) is not None:
        row["share_with_predictions"] = share
    if (correlation := statistics.get("difficulty", {}).get("spearman")) is not None:
        row["spearman"] = correlation["value"]
    return {**row, "metrics": drop_losses_of_other_depths(metrics, everyone.get("loss"))}


def has_targets(budgets: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint was fitted to targets, and not only evaluated as it was trained."""
    return any(row.get("target") is not None for row in budgets.get("rows", ()))


def select_drawn_quality(budgets: Mapping[str, Any]) -> str | None:
    """Return the quality metric for the figure of quality against depth, or None if no row has one."""
    metrics = budgets["rows"][0]["metrics"]
    return next((name for name in (*PREFERRED_QUALITIES, "loss") if name in metrics), None)


def select_compute(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the field of rows with compute as a share of full depth, with predictions if all rows have it."""
    has_predictions = all("share_with_predictions" in row for row in rows)
    return "share_with_predictions" if has_predictions else "adaptive_over_full"


def format_budget_label(row: Mapping[str, Any]) -> str:
    """Return the label of a table row: its target depth or, without a target, `as trained`."""
    if row["target"] is None:
        return "as trained"
    return f"{row['target']:g}" + ("" if row["fit"]["is_reached"] else " (nearest)")


def build_budget_table(budgets: Mapping[str, Any]) -> Table:
    """Build the table of one checkpoint fitted to several depths: quality, depth, and compute relative to full depth.

    Args:
        budgets: Contents of budgets.json.
    """
    columns = [
        Column("row", "target", text, "text", where="view"),
        *(Column(key, where="file") for key in ("target", "level", "fitted")),
        *([Column("rule", "exit rule", format_rule, "text")] if any("rule" in row for row in budgets["rows"]) else []),
        Column("mean", "depth", make_number_format(2)),
        Column("std", "sd", make_number_format(2)),
        Column("executed_over_full", where="file"),
        *(
            [Column("share_with_predictions", "compute with predictions", make_number_format(3))]
            if select_compute(budgets["rows"]) == "share_with_predictions"
            else []
        ),
        Column("adaptive_over_full", name_compute("compute", budgets["rows"]), make_number_format(3)),
        *(
            Column(name, title, make_number_format(3) if name == "ms_per_token" else format_count)
            for name, title in _UNIT_COSTS.items()
            if any(name in row for row in budgets["rows"])
        ),
        *(
            Column(name, name, make_number_format(4))
            for name in budgets["rows"][0]["metrics"]
            if all(name in row["metrics"] for row in budgets["rows"])
        ),
    ]
    rows = []
    for row in budgets["rows"]:
        fit = row["fit"] or {}
        cells = {"row": format_budget_label(row), "level": fit.get("level"), "fitted": fit.get("depth")}
        rows.append({**row["metrics"], **row, **cells})
    return Table("budgets", columns, rows)


def format_budgets(budgets: Mapping[str, Any]) -> str:
    """Format the table of one checkpoint fitted to several depths as text for a screen of 100 columns.

    `build_budget_table` has all columns, for the report.

    Args:
        budgets: Contents of budgets.json.
    """
    table, compute = build_budget_table(budgets), select_compute(budgets["rows"])
    screen_keys = ("row", "rule", "mean", "std", compute, select_drawn_quality(budgets))
    columns = [column for column in table.columns if column.key in screen_keys]
    # The header says whether the compute has predictions.
    columns = [replace(column, title="compute") if column.key == compute else column for column in columns]
    if compute == "share_with_predictions":
        remark = ", with predictions"
    else:
        remark = f", {WITHOUT_PREDICTIONS}" if has_separate_predictions(budgets["rows"]) else ""
    header = (
        f"one checkpoint at several depths ({budgets['unit']}), by {budgets['knob']}:\nfitted on "
        f"{budgets['fitted_on']:,} sequences of {budgets['set']}, measured on {budgets['measured_on']:,} others;\n"
        f"compute as a share of full depth{remark}"
    )
    return f"{header}\n\n{to_text(replace(table, columns=columns))}"


def write_budgets(directory: Path, budgets: Mapping[str, Any]) -> None:
    """Write the results of one checkpoint fitted to several depths to budgets.json and budgets.csv.

    The rows come from `build_budget_row`.
    """
    write_json(directory / BUDGETS, budgets)
    write_atomic(directory / BUDGETS_TABLE, to_csv(build_budget_table(budgets)))


_CURVES = {
    "Budget and depth": (("target", "measured"), "mean depth, in the unit of the budget"),
    "Multiplier of depth": (("multiplier",), "multiplier"),
}


def budget(files: RunFiles) -> Section | None:
    """Build the report section on target depth, measured depth and multiplier over training."""
    panels = []
    for title, (names, unit) in _CURVES.items():
        lines = [(name, series(files.metrics, f"budget/{name}")) for name in names]
        if any(len(points) > 1 for _, points in lines):  # fitted once at the end, there is nothing to follow
            panels.append(build_line_panel(title, lines, unit))
    if not panels:
        return None
    figure, finding = Figure("budget", panels), target(files)
    html = fill("budgets:budget", figure=figure, sentences=finding.sentences if finding else [])
    sample = f"n = {sum('budget/measured' in line for line in files.metrics):,} logs of 1 run"
    return Section("Budget", "budget", html, [figure], of=sample)


def targets(files: RunFiles) -> Section | None:
    """Build the report section on a checkpoint that was evaluated at several target depths."""
    budgets = files.of(BUDGETS)
    if not has_targets(budgets):
        return None
    name, panels = str(select_drawn_quality(budgets)), []
    points = sorted((row["mean"], row["metrics"][name]) for row in budgets["rows"] if name in row["metrics"])
    if points:
        x, y = (pad_range(values, floor) for values, floor in zip(zip(*points, strict=True), (0.0, None), strict=True))
        axes = Axis(f"mean depth ({budgets['unit']})", x), Axis(name.replace("_", " "), y)
        panels = [Panel(f"{format_loss_title(name)} against depth", Lines([("", points)]), *axes)]
    figures, table = [Figure("budgets", panels)] if panels else [], build_budget_table(budgets)
    predictions_apart = has_separate_predictions(budgets["rows"])
    html = fill("budgets:targets", fits=budgets, figures=figures, table=table, predictions_apart=predictions_apart)
    sample = f"n = {budgets['measured_on']:,} sequences of {budgets['set']}"
    return Section("One checkpoint at several depths", "targets", html, figures, [table], of=sample)


SECTIONS = (SectionEntry(150, budget), SectionEntry(160, targets))
