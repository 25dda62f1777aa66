"""The section of the report with example grids, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup, escape

from adadepth.analysis.files import RunFiles
from adadepth.analysis.measure.grids import Cell, Grid, depth_panel, distance_panel, facts_of, measure_of
from adadepth.analysis.render import charts

WRONG = "#d55e00"
_GAP, _TOP = 24, 20  # between the panels and above them, in pixels


def grid_sets(files: RunFiles) -> list[tuple[str, list[tuple[str, Markup]]]]:
    """(name, (heading, drawing) of each grid) for every evaluated set that has grids."""
    max_depth = int(files.grids.get("max_depth", 1))
    return [
        (name, [(facts_of(grid), _drawing(grid, max_depth)) for grid in grids])
        for name, grids in files.grids.get("sets", {}).items()
        if grids
    ]


def _drawing(grid: Grid, max_depth: int) -> Markup:
    """Distance and depth side by side, as wide as other charts."""
    rows, columns = len(grid["cells"]), len(grid["cells"][0])
    width = (charts.WIDTH - _GAP) / 2
    side, right = width / columns, width + _GAP
    content = [
        *_title(width / 2, measure_of(grid)), *_panel(distance_panel(grid), 0, side),
        *_title(right + width / 2, "depth (updates)"), *_panel(depth_panel(grid, max_depth), right, side),
    ]  # fmt: skip
    description = f"{rows} x {columns} cells, {measure_of(grid)} and depths; {facts_of(grid)}"
    return charts.picture("".join(content), description, charts.WIDTH, round(rows * side) + _TOP)


def _title(middle: float, text: str) -> Iterator[str]:
    yield f'<text x="{middle:.0f}" y="13" text-anchor="middle">{escape(text)}</text>'


def _panel(cells: Sequence[Cell], left: float, side: float) -> Iterator[str]:
    """Filled squares, their texts, and a frame around what is wrong; the unit of length is a cell."""
    yield f'<g transform="translate({left:g} {_TOP}) scale({side:.3f})" font-size=".45" text-anchor="middle">'
    for cell in cells:
        x, y = cell.column, cell.row
        yield f'<path d="M{x} {y}h1v1h-1z" fill="{cell.fill}" stroke="#fff" stroke-width=".03"/>'
        if cell.text:
            yield f'<text x="{x + 0.5}" y="{y + 0.66:g}" fill="{cell.ink}">{escape(cell.text)}</text>'
    for cell in cells:
        if cell.is_wrong:
            x_low, y_low = cell.column + 0.06, cell.row + 0.06
            yield f'<path d="M{x_low:g} {y_low:g}h.88v.88h-.88z" fill="none" stroke="{WRONG}" stroke-width=".12"/>'
    yield "</g>"


def grids_of(files: RunFiles) -> dict[str, list[dict[str, Any]]]:
    """The grids of every set that has some."""
    return {name: grids for name, grids in files.grids.get("sets", {}).items() if grids}
