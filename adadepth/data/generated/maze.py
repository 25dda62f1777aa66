"""Mazes: the task of deciding which cells can be reached from the start. Distant cells need more depth.

A maze is a square of cells with one token for each cell. A share of the cells are walls, and one random other cell is
the start. Every other free cell is labelled as reachable or not. If attention looks at neighbours, information from the
start travels one cell per update along the shortest path. The difficulty of a cell is therefore its distance from the
start. Positions are two-dimensional with ALBERT's own inputs: the row is the position id, and the column is the token
type. Mazes are placed at a random offset in a larger field, so that every row and column is trained and a model can
read larger mazes than those of training. Evaluation uses random offsets too, which are the same in every run.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.data.batches import IGNORE
from adadepth.data.editable_grid import EditableGrid, GridRows, count_square_columns, number_symbols
from adadepth.data.generated.base import DrawnTags, build_symbol_example, build_tagging_data, get_evaluation_size
from adadepth.data.labelled.collators import NO_DIFFICULTY
from adadepth.data.randomness import EVALUATION_SEED, Purpose
from adadepth.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adadepth.config.data import MazeConfig
    from adadepth.data.run_data import RunData

LABELS = ("unreachable", "reachable")
SYMBOLS = ("#", ".", "S")  # wall, free, start
_WALL, _FREE, _START = range(3)


class MazeExamples(DrawnTags):
    """Examples of the maze task, all with mazes of one size.

    An example has one token for each cell, row by row. ``position_ids`` are the rows of the field, and
    ``token_type_ids`` its columns. ``labels`` are -100 at walls and at the start. ``difficulties`` are distances, or -1
    if no path leads to the cell.
    """

    purpose = Purpose.MAZE

    def __init__(self, dataset: MazeConfig, size: int, length: int, seed: int) -> None:
        super().__init__(length, seed)
        self.size = size
        self.walls = dataset.walls
        self.offset_count = dataset.field - size + 1

    def draw(self, rows: int, epoch: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the cells of mazes (rows, size^2) int8, distances from the start int16, and offsets (rows, 2) int16."""
        cells = draw_mazes(rows, self.size, self.walls, generator)
        offsets = generator.integers(0, self.offset_count, (rows, 2), dtype=np.int16)
        return {"cells": cells.reshape(rows, -1), "distances": distances(cells).reshape(rows, -1), "place": offsets}

    def example(self, columns: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return a maze, placed at its offset in the field, as an example with a label for each cell."""
        cells, distance = columns["cells"], columns["distances"].astype(np.int64)
        row, column = np.divmod(np.arange(len(cells)), self.size) + columns["place"].astype(np.int64)[:, None]
        labels = np.where(cells == _FREE, (distance >= 0).astype(np.int64), IGNORE)
        difficulties = np.where(cells == _FREE, distance, NO_DIFFICULTY)
        return {**build_symbol_example(cells, labels, difficulties), "position_ids": row, "token_type_ids": column}


def draw_mazes(rows: int, size: int, walls: float, generator: np.random.Generator) -> np.ndarray:
    """Draw random mazes with one start each, as indices into SYMBOLS, (rows, size, size) int8.

    A cell is a wall with probability ``walls``. In a maze that would have only walls, the first cell is the start.
    """
    free = generator.random((rows, size * size), dtype=np.float32) >= walls
    lots = np.where(free, generator.random(free.shape, dtype=np.float32), -1.0)
    cells = np.where(free, np.int8(_FREE), np.int8(_WALL))
    cells[np.arange(rows), lots.argmax(axis=1)] = _START
    return cells.reshape(rows, size, size)


def distances(cells: np.ndarray) -> np.ndarray:
    """Return the distance of each cell from the start, or -1 if no path leads to it, (rows, size, size) int16.

    The search is breadth-first, in all mazes at once.
    """
    steps = np.full(cells.shape, NO_DIFFICULTY, dtype=np.int16)
    open_cells, front = cells != _WALL, cells == _START
    for distance in count():
        steps[front] = distance
        open_cells &= ~front
        front = _mark_neighbours(front) & open_cells
        if not front.any():
            return steps
    raise AssertionError


def _mark_neighbours(cells: np.ndarray) -> np.ndarray:
    """Return which cells are horizontal or vertical neighbours of the given cells, (rows, size, size) bool."""
    beside = np.zeros_like(cells)
    beside[:, 1:] |= cells[:, :-1]
    beside[:, :-1] |= cells[:, 1:]
    beside[:, :, 1:] |= cells[:, :, :-1]
    beside[:, :, :-1] |= cells[:, :, 1:]
    return beside


def load_maze(dataset: MazeConfig, seed: int) -> RunData:
    """Generate the maze data. The evaluation set ``inside`` has the trained size, ``beyond_N`` has size N.

    The evaluation sets depend on neither the seed nor the number of training examples.
    """
    train = MazeExamples(dataset, dataset.size, dataset.train_examples, seed)
    sizes = {"inside": dataset.size, **{f"beyond_{size}": size for size in dataset.beyond_sizes}}
    evaluation = {
        name: MazeExamples(dataset, size, get_evaluation_size(dataset), EVALUATION_SEED) for name, size in sizes.items()
    }
    facts = {"sizes": sizes, "walls": dataset.walls, "field": dataset.field}
    columns = {"type_vocab_size": dataset.field}
    return build_tagging_data(
        dataset, train, evaluation, SYMBOLS, LABELS, facts, picture="cells", least_fields=columns
    )  # fmt: skip


def read_maze(dataset: MazeConfig, rows: GridRows, before: Mapping[str, Any]) -> dict[str, Any]:
    """Build an example from a maze that a user edited in the demo. It keeps its offset in the field."""
    cells = number_symbols(rows, SYMBOLS)
    if (starts := int((cells == _START).sum())) != 1:
        raise DataError(f"a maze needs exactly one start S, but has {starts}")
    offsets = np.array([before["position_ids"].min(), before["token_type_ids"].min()])
    away = distances(cells[None])[0]
    examples = MazeExamples(dataset, len(cells), 1, EVALUATION_SEED)
    return examples.example({"cells": cells.ravel(), "distances": away.ravel(), "place": offsets})


MAZE_GRID = EditableGrid(lambda dataset: SYMBOLS, read_maze, count_square_columns)
