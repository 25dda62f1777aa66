"""Report section on example grids: the difficulty of every cell, and the number of updates it received."""

from __future__ import annotations

from collections.abc import Callable

from adadepth.metrics.grid_examples import (
    _GIVEN,
    _NEW,
    _SAME,
    _WRONG,
    PUZZLE,
    Grid,
    find_box_shape,
    format_difficulty_title,
    format_grid_caption,
    format_puzzle_caption,
    select_shown_steps,
)
from adadepth.report.figure import Boards, Cell, Figure, Panel
from adadepth.report.run_files import GRIDS, RunFiles
from adadepth.report.section import Section, SectionEntry, fill
from adadepth.report.style import get_depth_color, get_text_color, ramp

_BOARDS_PER_ROW = 2  # boards of a puzzle that are legible beside each other


def examples(files: RunFiles) -> Section | None:
    """Build the report section on the example grids of every evaluated set."""
    max_updates = int(files.of(GRIDS).get("max_depth", 1))
    figures = {
        name: Figure(f"grids_{name}", [_build_panel(grid, max_updates) for grid in grids])
        for name, grids in files.of(GRIDS).get("sets", {}).items()
        if grids
    }
    if not figures:
        return None
    grids = [grid for set_grids in files.of(GRIDS)["sets"].values() for grid in set_grids]
    content = {"picture": grids[0].get("kind"), "partly": any(map(_is_partly_labelled, grids))}
    html = fill("grids", figures=figures, max_updates=files.halting.get("max_depth", "L"), **content)
    sample = f"n = {len(grids)} sequences of {', '.join(figures)}"
    return Section("Examples", "examples", html, list(figures.values()), of=sample)


def _is_partly_labelled(grid: Grid) -> bool:
    """Return whether a graph of pointers has nodes without a label."""
    pairs = zip(grid["cells"], grid["label"], strict=True)
    labels = [label for cells, row in pairs for cell, label in zip(cells, row, strict=True) if cell is not None]
    return grid.get("kind") == "chains" and None in labels


def _build_panel(grid: Grid, max_updates: int) -> Panel:
    if grid.get("kind") == PUZZLE:
        return _build_answer_panel(grid)
    rows, columns = len(grid["cells"]), len(grid["cells"][0])
    boards = (
        (format_difficulty_title(grid), draw_distance_cells(grid)),
        ("depth (updates)", draw_depth_cells(grid, max_updates)),
    )
    description = f"{rows} x {columns} cells, {format_difficulty_title(grid)} and depths; {format_grid_caption(grid)}"
    return Panel(format_grid_caption(grid), Boards(boards, rows, columns), description=description)


def _build_answer_panel(grid: Grid) -> Panel:
    rows, columns = len(grid["cells"]), len(grid["cells"][0])
    facts = format_puzzle_caption(grid)
    description = f"{rows} x {columns} cells, the puzzle and its answer after every step; {facts}"
    boards = Boards(draw_answer_boards(grid), rows, columns, _BOARDS_PER_ROW, find_box_shape(grid["label"]))
    return Panel(facts, boards, description=description)


_PLAIN, _ASIDE, _WHITE = "#4a525b", "#f0f2f5", "#ffffff"


def draw_distance_cells(grid: Grid) -> list[Cell]:
    """Draw the cells of a grid shaded by their true distance; a cell without a distance shows its symbol."""
    furthest = max((value for row in grid["difficulty"] for value in row if value is not None), default=1)

    def draw(row: int, column: int) -> Cell:
        symbol, distance = grid["cells"][row][column], grid["difficulty"][row][column]
        if distance is not None:
            fill = ramp(max(distance - 1, 0) / max(furthest - 1, 1))
            return Cell(row, column, str(distance), fill, get_text_color(fill))
        if grid["label"][row][column] is not None:
            return Cell(row, column, "–", _ASIDE, _PLAIN)
        fill = _PLAIN if symbol == "#" else _WHITE
        return Cell(row, column, "" if symbol == "#" else symbol, fill, get_text_color(fill))

    return _draw_cells(grid, draw)


def draw_depth_cells(grid: Grid, max_updates: int) -> list[Cell]:
    """Draw the cells of a grid shaded by their number of updates, except for walls.

    Wrong predictions are marked.
    """

    def draw(row: int, column: int) -> Cell:
        depth, label = grid["updates"][row][column], grid["label"][row][column]
        fill = _PLAIN if grid["cells"][row][column] == "#" else get_depth_color(depth, max_updates)
        return Cell(row, column, str(depth), fill, get_text_color(fill), label != grid["predicted"][row][column])

    return _draw_cells(grid, draw)


def _draw_cells(grid: Grid, draw: Callable[[int, int], Cell]) -> list[Cell]:
    return [
        draw(row, column)
        for row, symbols in enumerate(grid["cells"])
        for column, symbol in enumerate(symbols)
        if symbol is not None
    ]


def draw_answer_boards(grid: Grid) -> list[tuple[str, list[Cell]]]:
    """Draw a puzzle and the model's answer after each step, with new symbols in blue and wrong ones marked."""
    before = grid["cells"]
    boards = [(PUZZLE, _draw_board(grid, before, before))]
    for step in select_shown_steps(len(grid["answers"])):
        answer = grid["answers"][step - 1]
        boards.append((f"step {step}", _draw_board(grid, answer, before)))
        before = answer
    return boards


def _draw_board(grid: Grid, answer: list[list[str]], before: list[list[str]]) -> list[Cell]:
    cells = []
    for row, symbols in enumerate(answer):
        for column, symbol in enumerate(symbols):
            solution, clue = grid["label"][row][column], grid["cells"][row][column]
            is_given = clue == solution
            is_wrong = answer is not grid["cells"] and solution is not None and symbol != solution
            fill = _GIVEN if is_given else _WRONG if is_wrong else _NEW if symbol != before[row][column] else _SAME
            cells.append(Cell(row, column, symbol, fill, get_text_color(fill), is_wrong))
    return cells


SECTIONS = (SectionEntry(50, examples),)
