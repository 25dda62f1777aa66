"""Generated puzzles: Sudoku, and shortest paths through mazes, each with a unique solution."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from adadepth.data.editable_grid import EditableGrid, GridRows, count_square_columns, number_symbols
from adadepth.data.generated.base import get_evaluation_size
from adadepth.data.generated.maze import distances, draw_mazes
from adadepth.data.puzzles.dataset import PuzzleExamples, build_puzzle_data
from adadepth.data.puzzles.sudoku import (
    SHAPES,
    Shape,
    apply_square_symmetry,
    apply_sudoku_symmetry,
    compute_square_keys,
    count_rounds,
    draw_grids,
    invariants,
    reduce_to_minimal,
    solutions,
    to_candidates,
)
from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, random_generator
from adadepth.data.run_data import RunData
from adadepth.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from adadepth.config.data import MazePathConfig, SudokuConfig


BLANK = "."


def load_sudoku(dataset: SudokuConfig, seed: int) -> RunData:
    """Draw Sudoku puzzles that have exactly one solution.

    No evaluation puzzle equals a training puzzle under any symmetry. The evaluation set depends on neither the seed nor
    the number of training examples.

    Raises:
        DataError: If no training puzzle remains.
    """
    shape = SHAPES[dataset.size]
    draw = partial(draw_sudoku, shape, blanks=dataset.blanks)
    held_out = draw(get_evaluation_size(dataset), EVALUATION_SEED, evaluation=True)
    puzzles, solutions = draw(dataset.train_examples, seed, evaluation=False)
    is_new = ~np.isin(invariants(puzzles, shape), invariants(held_out[0], shape))
    if not is_new.any():
        raise DataError(
            f"dataset.train_examples={dataset.train_examples}: all are symmetric to one of the {len(held_out[0])} "
            f"evaluation puzzles; few other puzzles of {dataset.size} x {dataset.size} cells exist"
        )
    train = _build_examples(puzzles[is_new], solutions[is_new], shape)
    if dataset.symmetries:
        train.symmetry, train.seed = partial(apply_sudoku_symmetry, shape), seed
    facts = {"size": shape.size, "givens": round(float((puzzles > 0).sum(axis=1).mean()), 2)}
    return build_puzzle_data(
        dataset, train, {"validation": _build_examples(*held_out, shape)}, list_sudoku_symbols(dataset), facts
    )


def draw_sudoku(
    shape: Shape, rows: int, seed: int, *, blanks: int | None, evaluation: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Draw Sudoku puzzles and their solutions, each (rows, n^2) int8."""
    generator = random_generator(seed, Purpose.PUZZLES, FIXED_EPOCH, int(evaluation))
    grids = draw_grids(rows, shape, generator)
    return reduce_to_minimal(grids, shape, generator, shape.cells if blanks is None else blanks), grids


def _build_examples(puzzles: np.ndarray, solutions: np.ndarray, shape: Shape) -> PuzzleExamples:
    """Build examples from Sudoku puzzles, in which a blank is token 1 and the digit d is token d + 1."""
    rounds = count_rounds(puzzles, solutions, shape)
    attributes = {"rounds of deduction": rounds, "givens": (puzzles > 0).sum(axis=1)}
    return PuzzleExamples((puzzles + 1).astype(np.int8), (solutions + 1).astype(np.int8), rounds, attributes)


SYMBOLS = "# SGo"  # as in Maze-Hard: wall, free, start, goal, on the way
_WALL, _FREE, _START, _GOAL, _WAY = range(1, 6)
_MOST_DRAWS = 100  # each of as many mazes as are needed
_TOO_NEAR = 2  # shortest path: a goal beside the start leaves no cell to mark


def load_maze_path(dataset: MazePathConfig, seed: int) -> RunData:
    """Draw mazes with exactly one shortest path.

    No evaluation maze equals a rotated or mirrored training maze.
    """
    held_out = draw_paths(dataset, get_evaluation_size(dataset), EVALUATION_SEED, evaluation=True)
    train = draw_paths(dataset, dataset.train_examples, seed, evaluation=False)
    train = train.exclude(np.isin(compute_square_keys(train.puzzles), compute_square_keys(held_out.puzzles)))
    if dataset.symmetries:
        train.symmetry, train.seed = apply_square_symmetry, seed
    return build_puzzle_data(dataset, train, {"validation": held_out}, SYMBOLS, {"size": dataset.size})


def draw_paths(dataset: MazePathConfig, rows: int, seed: int, *, evaluation: bool) -> PuzzleExamples:
    """Draw mazes with one shortest path as tokens, and their solutions. The difficulty is the length of the path."""
    generator = random_generator(seed, Purpose.PUZZLES, FIXED_EPOCH, int(evaluation))
    mazes: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for _ in range(_MOST_DRAWS):
        mazes.append(solve_mazes(draw_mazes(rows, dataset.size, dataset.walls, generator)))
        if sum(len(part[0]) for part in mazes) >= rows:
            break
    else:
        raise ConfigError(f"dataset.walls={dataset.walls:g}: hardly a maze of dataset.size={dataset.size} has a path")
    puzzles, solutions, lengths = (np.concatenate(parts)[:rows] for parts in zip(*mazes, strict=True))
    return PuzzleExamples(puzzles, solutions, lengths, {"path length": lengths})


def solve_mazes(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return puzzles and solutions (rows', n^2) int8 of mazes (rows, n, n), and path lengths (rows',) int64.

    Mazes without a goal that is far enough from the start are skipped.
    """
    away = distances(cells)
    ways = count_shortest_paths(away)
    flat = np.where(ways == 1, away, -1).reshape(len(cells), -1)
    goals = flat.argmax(axis=1)
    rows = np.flatnonzero(flat.max(axis=1) >= _TOO_NEAR)
    size = cells.shape[1]
    puzzles = np.array([_WALL, _FREE, _START], dtype=np.int8)[cells[rows]]
    goal_cells = np.arange(len(rows)), *np.divmod(goals[rows], size)
    puzzles[goal_cells] = _GOAL
    solutions, lengths = puzzles.copy(), away[rows][goal_cells].astype(np.int64)
    for number, row in enumerate(rows):
        for y, x in _trace_way_back(away[row], int(goals[row]) // size, int(goals[row]) % size):
            solutions[number, y, x] = _WAY
    return puzzles.reshape(len(rows), size**2), solutions.reshape(len(rows), size**2), lengths


def count_shortest_paths(away: np.ndarray) -> np.ndarray:
    """Return the number of shortest paths to each cell, at most 2, or 0 if no path leads there, (rows, n, n) int8."""
    ways: np.ndarray = (away == 0).astype(np.int8)
    for distance in range(1, int(away.max()) + 1):
        padded = np.pad(np.where(away == distance - 1, ways, 0), ((0, 0), (1, 1), (1, 1)))
        around = padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1] + padded[:, 1:-1, :-2] + padded[:, 1:-1, 2:]
        ways[away == distance] = around.clip(max=2)[away == distance]
    return ways


def _trace_way_back(away: np.ndarray, y: int, x: int) -> list[tuple[int, int]]:
    """Return the cells of a maze's shortest path, followed from the goal back to the start."""
    between = []
    while away[y, x] > 1:
        beside = ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1))
        y, x = next(
            (to_y, to_x)
            for to_y, to_x in beside
            if 0 <= to_y < len(away) and 0 <= to_x < len(away) and away[to_y, to_x] == away[y, x] - 1
        )
        between.append((y, x))
    return between


def read_sudoku(dataset: SudokuConfig, rows: GridRows, before: Mapping[str, Any]) -> dict[str, Any]:
    """Build an example from a Sudoku that a user edited in the demo; without labels if it has several solutions.

    Raises:
        DataError: If the Sudoku has no solution.
    """
    shape = SHAPES[dataset.size]
    puzzle = number_symbols(rows, list_sudoku_symbols(dataset)).reshape(1, -1)
    solved = solutions(to_candidates(puzzle, shape), shape)
    if not solved[0, 0]:
        raise DataError("this Sudoku has no solution, because its digits contradict each other")
    if _has_second_solution(puzzle, solved, shape):
        return {"index": 0, "input_ids": puzzle[0] + 1, "labels": np.zeros_like(puzzle[0]), "difficulty": -1}
    return {**_build_examples(puzzle, solved, shape)[0], "index": 0}


def _has_second_solution(puzzle: np.ndarray, solved: np.ndarray, shape: Shape) -> bool:
    """Return whether a puzzle has a second solution besides the given one."""
    blanks = np.flatnonzero(puzzle[0] == 0)
    candidates = to_candidates(np.repeat(puzzle, len(blanks), axis=0), shape)
    candidates[np.arange(len(blanks)), blanks] &= ~(1 << (solved[0, blanks].astype(np.int32) - 1))
    return bool(len(blanks)) and bool(solutions(candidates, shape)[:, 0].any())


def list_sudoku_symbols(dataset: SudokuConfig) -> Sequence[str]:
    """Return the symbols of a Sudoku: a blank, then the digits."""
    return (BLANK, *map(str, range(1, SHAPES[dataset.size].size + 1)))


def read_maze_path(dataset: MazePathConfig, rows: GridRows, before: Mapping[str, Any]) -> dict[str, Any]:
    """Build an example from a maze that a user edited in the demo; without labels if it has several shortest paths.

    Raises:
        DataError: If the maze does not have one start, one goal and a path between them.
    """
    puzzle = number_symbols(rows, SYMBOLS) + 1
    starts, goals = np.argwhere(puzzle == _START), np.argwhere(puzzle == _GOAL)
    if len(starts) != 1 or len(goals) != 1:
        raise DataError(f"a maze needs exactly one start S and one goal G, but has {len(starts)} and {len(goals)}")
    numbers = np.select([puzzle == _WALL, puzzle == _START], [0, 2], 1).astype(np.int8)
    away, (y, x) = distances(numbers[None]), map(int, goals[0])
    if away[0, y, x] < 0:
        raise DataError("no path leads from the start S to the goal G")
    solution, is_only = puzzle.copy(), count_shortest_paths(away)[0, y, x] == 1
    for row, column in _trace_way_back(away[0], y, x) if is_only else ():
        solution[row, column] = _WAY
    flat = solution.ravel() if is_only else np.zeros(puzzle.size, dtype=np.int8)
    return {"index": 0, "input_ids": puzzle.ravel(), "labels": flat, "difficulty": int(away[0, y, x])}


SUDOKU_GRID = EditableGrid(list_sudoku_symbols, read_sudoku, count_square_columns)
MAZE_PATH_GRID = EditableGrid(lambda dataset: SYMBOLS[:-1], read_maze_path, count_square_columns)
