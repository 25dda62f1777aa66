"""Example grids: what every cell needs, and the depth it was given."""

from __future__ import annotations

from adadepth.analysis.files import RunFiles
from adadepth.analysis.measure.grids import Grid, depth_panel, distance_panel, facts_of, measure_of
from adadepth.analysis.measure.puzzles import PUZZLE, answer_boards, box_of, puzzle_facts
from adadepth.analysis.render.figure import Boards, Figure, Panel
from adadepth.analysis.render.section import Section, fill

_BESIDE = 2  # boards of a puzzle that are legible beside each other


def examples(files: RunFiles) -> Section | None:
    """The example grids of every evaluated set."""
    deepest = int(files.grids.get("max_depth", 1))
    figures = {
        name: Figure(f"grids_{name}", [_panel(grid, deepest) for grid in grids])
        for name, grids in files.grids.get("sets", {}).items()
        if grids
    }
    if not figures:
        return None
    grids = [grid for found in files.grids["sets"].values() for grid in found]
    html = fill("grids", figures=figures, max_depth=files.halting.get("max_depth", "L"), picture=grids[0].get("kind"))
    of = f"n = {len(grids)} examples of {', '.join(figures)}"
    return Section("Examples", "examples", html, list(figures.values()), of=of)


def _panel(grid: Grid, max_depth: int) -> Panel:
    if grid.get("kind") == PUZZLE:
        return _answers(grid)
    rows, columns = len(grid["cells"]), len(grid["cells"][0])
    boards = ((measure_of(grid), distance_panel(grid)), ("depth (updates)", depth_panel(grid, max_depth)))
    description = f"{rows} x {columns} cells, {measure_of(grid)} and depths; {facts_of(grid)}"
    return Panel(facts_of(grid), Boards(boards, rows, columns), description=description)


def _answers(grid: Grid) -> Panel:
    rows, columns = len(grid["cells"]), len(grid["cells"][0])
    facts = puzzle_facts(grid)
    description = f"{rows} x {columns} cells, the puzzle and its answer after every step; {facts}"
    boards = Boards(answer_boards(grid), rows, columns, _BESIDE, box_of(grid["label"]))
    return Panel(facts, boards, description=description)
