"""The figure of example grids: what `plots` draws for data sets whose tokens are cells.

Types of matplotlib are not named here: `plots` is the one module that imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adadepth.analysis.files import RunFiles
from adadepth.analysis.measure.grids import Cell, Grid, depth_panel, distance_panel, facts_of, measure_of
from adadepth.analysis.render.grid_sections import WRONG


def draw_grids(figure: Any, files: RunFiles, name: str) -> bool:
    """The grids of one evaluated set, two examples a row, each as true distances and depths."""
    grids = files.grids["sets"][name]
    max_depth = files.grids["max_depth"]
    rows = -(-len(grids) // 2)
    side = 0.2 * max(len(grids[0]["cells"]), len(grids[0]["cells"][0])) + 0.6
    figure.set_size_inches(4 * side + 0.6, rows * (side + 0.5) + 0.5)
    panels = figure.subplots(rows, 4, squeeze=False).flatten()
    for number, grid in enumerate(grids):
        left, right = panels[2 * number], panels[2 * number + 1]
        _draw(left, distance_panel(grid), grid)
        _draw(right, depth_panel(grid, max_depth), grid)
        left.set_title(f"{facts_of(grid)}\n{measure_of(grid)}", fontsize=8.5, fontweight="normal")
        right.set_title("\ndepth (updates)", fontsize=8.5, fontweight="normal")
    for axes in panels[2 * len(grids) :]:
        axes.remove()
    figure.suptitle(
        f"What each unit needs, and the depth it was given ({name}); framed: wrong", x=0.01, ha="left", weight="bold"
    )
    return True


def _draw(axes: Any, cells: Sequence[Cell], grid: Grid) -> None:
    """Squares with texts, the first row at the top."""
    for cell in cells:
        left, top = cell.column, cell.row
        corners = [left, left + 1, left + 1, left], [top, top, top + 1, top + 1]
        axes.fill(*corners, facecolor=cell.fill, edgecolor="white", linewidth=0.4)
        axes.text(cell.column + 0.5, cell.row + 0.53, cell.text, ha="center", va="center", fontsize=5.5, color=cell.ink)
    for cell in cells:
        if cell.is_wrong:
            low_x, low_y = cell.column + 0.06, cell.row + 0.06
            x, y = (low_x, low_x + 0.88), (low_y, low_y + 0.88)
            axes.plot([*x, x[1], x[0], x[0]], [y[0], y[0], y[1], y[1], y[0]], color=WRONG, linewidth=1.3, marker="")
    axes.set(xlim=(0, len(grid["cells"][0])), ylim=(len(grid["cells"]), 0), aspect="equal")
    axes.axis("off")
