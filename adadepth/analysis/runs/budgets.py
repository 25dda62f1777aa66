"""Budgets: how one was held in training, one checkpoint at several depths, and rivals of equal work."""

from __future__ import annotations

from adadepth.analysis.files import RunFiles, series
from adadepth.analysis.measure.budgets import budget_table, drawn_quality, quality_points, rival_table
from adadepth.analysis.render.figure import Axis, Figure, Lines, Panel, line_panel, padded
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.runs.losses import loss_title
from adadepth.analysis.verdict.target import target

_CURVES = {
    "Budget and depth": (("target", "measured"), "mean depth, in the budget's unit"),
    "Price of an update": (("multiplier",), "multiplier"),
}


def budget(files: RunFiles) -> Section | None:
    """Target, measured depth and multiplier over training."""
    panels = []
    for title, (names, unit) in _CURVES.items():
        lines = [(name, series(files.metrics, f"budget/{name}")) for name in names]
        if any(len(points) > 1 for _, points in lines):  # fitted once at the end, there is nothing to follow
            panels.append(line_panel(title, lines, unit))
    if not panels:
        return None
    figure, asked = Figure("budget", panels), target(files)
    html = fill("budget", figure=figure, sentences=asked.sentences if asked else [])
    of = f"n = {sum('budget/measured' in line for line in files.metrics):,} logs of 1 run"
    return Section("Budget", "budget", html, [figure], of=of)


def targets(files: RunFiles) -> Section | None:
    """One checkpoint whose depth was set to several targets."""
    found = files.budgets
    if not found:
        return None
    points, name, panels = quality_points(found), str(drawn_quality(found)), []
    if points:
        x, y = (padded(values, floor) for values, floor in zip(zip(*points, strict=True), (0.0, None), strict=True))
        axes = Axis(f"mean depth ({found['unit']})", x), Axis(name.replace("_", " "), y)
        panels = [Panel(f"{loss_title(name)} against depth", Lines([("", points)]), *axes)]
    figures, table = [Figure("budgets", panels)] if panels else [], budget_table(found)
    html = fill("targets", found=found, figures=figures, table=table)
    return Section("One checkpoint at several depths", "targets", html, figures, [table],
                   of=f"n = {found['measured_on']:,} examples of {found['set']}")  # fmt: skip


def rivals(files: RunFiles) -> Section | None:
    """Networks of one depth and as much work."""
    if not files.rivals:
        return None
    table = rival_table(files.rivals)
    return Section("Rivals of equal work", "rivals", fill("rivals", table=table), tables=[table],
                   of=f"n = {len(table.rows)} networks, one seed each")  # fmt: skip
