"""Depth by class: a table in the report, and a figure of its own."""

from __future__ import annotations

from adadepth.analysis.files import RunFiles, halts, run_unit
from adadepth.analysis.measure.class_table import class_table
from adadepth.analysis.measure.depths import first_depth
from adadepth.analysis.render.figure import Axis, Figure, Heat, Panel, Ranges, depth_axis
from adadepth.analysis.render.section import Section, absent, fill


def classes(files: RunFiles) -> Section | None:
    """How deep each class of units went."""
    if not halts(files):
        return None
    unit, title = run_unit(files), f"Depth by {run_unit(files)} class"
    if not files.halting.get("classes"):
        return Section(title, "classes", absent("Depth by class is", files, "halting.json"))
    table = class_table(files.halting)
    shows_accuracy = any("accuracy" in row for row in table.rows)
    html = fill(
        "classes", table=table, unit=unit, shows_accuracy=shows_accuracy, first=first_depth(files.halting),
        max_depth=files.halting["max_depth"],
    )  # fmt: skip
    return Section(title, "classes", html, class_figures(files), [table])


def class_figures(files: RunFiles) -> list[Figure]:
    """Spread and distribution of every class that has units."""
    halting = files.halting
    found = {name: described for name, described in halting["classes"].items() if described["n"]}
    if not found:
        return []
    first, last = first_depth(halting), halting["max_depth"]
    names = Axis("", (len(found) - 0.4, -0.6), range(len(found)), list(found))
    depth = depth_axis("depth (updates)", last, first)
    ranges = [(row["p10"], row["mean"], row["p90"]) for row in found.values()]
    columns = [[row["histogram"][at] / row["n"] for row in found.values()] for at in range(first, last + 1)]
    tall = max(1.0, 0.09 * len(found))
    panels = [
        Panel("Depth by class: mean, p10 to p90", Ranges(ranges), depth, names, tall=tall),
        Panel("Distribution of each class", Heat(columns, f"share of {run_unit(files)}s", first), depth, names,
              tall=tall),
    ]  # fmt: skip
    return [Figure("depth_by_class", panels)]
