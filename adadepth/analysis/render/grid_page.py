"""The files of a grid's summary: choice.json, report.html, and its table as CSV and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.analysis.measure.grid import grid_table, settings_text
from adadepth.analysis.render.formats import plain
from adadepth.analysis.render.page import write_page
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.render.table import as_text
from adadepth.atomic import write_atomic

CHOICE = "choice.json"


def write_grid(folder: Path, found: Mapping[str, Any], further: Sequence[Section] = ()) -> Path:
    """Write what was found in a grid into its folder; returns the path of the report.

    Args:
        folder: Of the sweep.
        found: From `summarise_grid`, with `name`, `metric` and `from_epoch`, and of what was chosen `run`,
            `checkpoint` and `evaluation`, folders relative to this one, and `submissions`, files in `submission/`.
        further: Sections that follow.
    """
    write_atomic(folder / CHOICE, json.dumps(found, indent=1, allow_nan=False) + "\n")
    table = grid_table(found)
    html = fill("grid", table=table, found=found, chosen=found["chosen"], settings=settings_text)
    section = Section("Grid", "grid", html, tables=[table])
    subtitle = f"A grid, and what was chosen by {found['metric']}"
    sections = [section, *further]
    return write_page(folder, sections, title=found["name"], subtitle=subtitle, sources=[CHOICE], whose="this grid")


def grid_text(found: Mapping[str, Any]) -> str:
    """The grid and the choice as text."""
    lines = [f"{found['metric']} of every cell and epoch", "", as_text(grid_table(found)), ""]
    lines += [f"left out: {settings_text(cell['settings'])}: {cell['reason']}" for cell in found["left_out"]]
    if (chosen := found["chosen"]) is None:
        return "\n".join([*lines, f"nothing to choose from: no epoch from {found['from_epoch']} on has all seeds"])
    spread = "" if chosen["std"] is None else f" +- {chosen['std']:.4f}"
    seeds = f"over {chosen['n']} seeds" if chosen["n"] > 1 else "of one seed"
    lines += [
        f"chosen: {settings_text(chosen['settings'])}, epoch {chosen['epoch']}: {found['metric']} "
        f"{chosen['mean']:.4f}{spread} {seeds}; best seed {chosen['seed']}: {chosen['score']:.4f}",
    ]
    return plain("\n".join(lines))
