"""Whether iterations still change the states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.depth.halting import curve
from adadepth.analysis.files import RunFiles, halts, run_unit
from adadepth.analysis.render.figure import Axis, Figure, Lines, Panel, depth_axis, padded
from adadepth.analysis.render.formats import rounded
from adadepth.analysis.render.section import Section, absent, fill
from adadepth.analysis.render.table import Column, Table, text

_VERSIONS = {"running": "Over units that run the iteration", "all": "Over all units (a halted state counts 1)"}


def cosines(files: RunFiles) -> Section | None:
    """Similarity of the states before and after each iteration, in its two versions."""
    if not halts(files):
        return None
    title, groups = "State between iterations", files.halting.get("cosine", {})
    values = [row[key] for rows in groups.values() for row in rows for key in _VERSIONS if key in row]
    if not values:
        reason = files.halting.get("missing", {}).get("halting/cosine", "")
        what = "Cosine similarity between iterations"
        return Section(title, "states", absent(what, files, "halting.json", reason))
    x = depth_axis("iteration k", files.halting["max_depth"])
    y = Axis("mean cosine similarity", (min(padded(values)[0], 0.95), 1.0))
    panels = [
        Panel(heading, Lines([(name, curve(rows, "step", key)) for name, rows in groups.items()]), x, y,
              f"Cosine similarity. {heading}")
        for key, heading in _VERSIONS.items()
    ]  # fmt: skip
    figure, table = Figure("cosine", panels), _table(groups)
    html = fill("cosines", figure=figure, table=table, unit=run_unit(files))
    return Section(title, "states", html, [figure], [table])


def _table(groups: Mapping[str, Any]) -> Table:
    columns = [
        Column("class", "class", text, "text"), Column("step", "iteration"), Column("running", "running", rounded(4)),
        Column("running_n", "n"), Column("all", "all", rounded(4)), Column("all_n", "n"),
    ]  # fmt: skip
    return Table("cosine", columns, [{"class": name, **row} for name, rows in groups.items() for row in rows])
