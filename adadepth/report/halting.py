"""Report sections on the halting distribution, the loss by depth, and the similarity of states between iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.report.difficulty import build_correlation_table
from adadepth.report.figure import Axis, Bars, Figure, Lines, Panel, build_depth_axis, pad_range
from adadepth.report.run_files import RunFiles, get_run_unit, halts
from adadepth.report.section import Section, SectionEntry, absent, fill
from adadepth.report.table import Column, Table, make_number_format, percent, text


def halting(files: RunFiles) -> Section | None:
    """Build the report section on halting by depth: share, survival, halting probability and loss."""
    if not halts(files):
        return None
    title, steps = "Halting distribution", files.halting.get("steps", [])
    if not curve(steps, "depth", "share"):
        return Section(title, "halting", absent("The halting distribution is", files, "halting.json"))
    figure, table = Figure("halting", _build_panels(steps, get_run_unit(files)), columns=3), build_depth_table(steps)
    return Section(title, "halting", fill("halting:halting", figure=figure, table=table), [figure], [table])


def _build_panels(steps: Sequence[Mapping[str, Any]], unit: str) -> list[Panel]:
    first, last = steps[0]["depth"], steps[-1]["depth"]
    depth, iteration = build_depth_axis("depth (updates)", last, first), build_depth_axis("iteration k", last)
    shares, losses = curve(steps, "depth", "share"), curve(steps, "depth", "loss")
    highest = 1.05 * max(share for _, share in shares)
    by_iteration = [
        (f"{unit}s that run iteration k", curve(steps, "depth", "survival")),
        ("mean halting probability of these", curve(steps, "depth", "probability")),
    ]
    share = Axis(f"share of {unit}s", (0, highest), percent=True)
    both = Axis("share or probability", (0, 1.03), percent=True)
    panels = [
        Panel("Depth distribution", Bars(shares), depth, share, f"Share of {unit}s at each depth"),
        Panel("Survival and halting probability", Lines(by_iteration), iteration, both),
    ]
    if losses:
        y = Axis(get_loss_axis_title(unit), pad_range([value for _, value in losses], floor=0.0))
        panels.append(Panel("Loss by depth", Lines([("loss", losses)]), depth, y, "Mean loss at each depth"))
    return panels


def get_loss_axis_title(unit: str) -> str:
    """Return the title of an axis that shows a loss.

    The loss of a sequence has no unit, because it may be the squared error of a value.
    """
    return "mean loss" if unit == "sequence" else "mean loss (nats)"


def build_depth_table(steps: Sequence[Mapping[str, Any]]) -> Table:
    """Build the table of halting statistics at every depth."""
    columns = [
        Column("depth", "depth k"),
        Column("n", "n halting at k"),
        Column("share", "share", percent),
        Column("reached", where="file"),
        Column("survival", "survival", percent),
        Column("probability", "halting probability", make_number_format(3)),
        Column("loss", "mean loss", make_number_format(3)),
        Column("loss_n", "n with loss"),
    ]
    return Table("halting", columns, steps)


def correlation(files: RunFiles) -> Section | None:
    """Build the report section on the rank correlation of depth with loss."""
    if not halts(files):
        return None
    title, correlations = "Depth and loss", files.halting.get("spearman")
    if not correlations:
        reason = files.halting.get("missing", {}).get("halting/spearman_depth_loss/all", "")
        what = "Spearman's correlation of depth with loss"
        return Section(title, "correlation", absent(what, files, "halting.json", reason))
    table = build_correlation_table("spearman_depth_loss", "depth, loss", "within", correlations)
    has_masks = "mask" in files.halting["classes"]
    html = fill("halting:correlation", table=table, unit=get_run_unit(files), has_masks=has_masks)
    return Section(title, "correlation", html, tables=[table])


def curve(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> list[tuple[int, float]]:
    """Return the points (x, y) of a curve, skipping table rows that lack one of the two values."""
    return [(row[x], row[y]) for row in rows if y in row and x in row]


_VERSIONS = {"running": "Over units that run the iteration", "all": "Over all units (a halted state counts 1)"}


def cosines(files: RunFiles) -> Section | None:
    """Build the report section on the cosine similarity of hidden states before and after each iteration.

    It has two versions, over the units that run the iteration and over all units.
    """
    if not halts(files):
        return None
    title, groups = "State between iterations", files.halting.get("cosine", {})
    values = [row[key] for rows in groups.values() for row in rows for key in _VERSIONS if key in row]
    if not values:
        reason = files.halting.get("missing", {}).get("halting/cosine", "")
        what = "Cosine similarity between iterations"
        return Section(title, "states", absent(what, files, "halting.json", reason))
    x = build_depth_axis("iteration k", files.halting["max_depth"])
    y = Axis("mean cosine similarity", (min(pad_range(values)[0], 0.95), 1.0))
    panels = []
    for key, heading in _VERSIONS.items():
        curves = Lines([(name, curve(rows, "step", key)) for name, rows in groups.items()])
        panels.append(Panel(heading, curves, x, y, f"Cosine similarity. {heading}"))
    figure, table = Figure("cosine", panels), _build_cosine_table(groups)
    html = fill("halting:cosines", figure=figure, table=table, unit=get_run_unit(files))
    return Section(title, "states", html, [figure], [table])


def _build_cosine_table(groups: Mapping[str, Any]) -> Table:
    columns = [
        Column("class", "class", text, "text"),
        Column("step", "iteration"),
        Column("running", "running", make_number_format(4)),
        Column("running_n", "n"),
        Column("all", "all", make_number_format(4)),
        Column("all_n", "n"),
    ]
    return Table("cosine", columns, [{"class": name, **row} for name, rows in groups.items() for row in rows])


SECTIONS = (SectionEntry(220, halting), SectionEntry(230, correlation), SectionEntry(250, cosines))
