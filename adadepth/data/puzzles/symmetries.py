"""What a puzzle may become in training: symmetries of Sudoku and of a square, and what is alike under them."""

from __future__ import annotations

import numpy as np

from adadepth.data.puzzles.sudoku import Shape, draw_symmetry, invariants


def under_sudoku_symmetry(
    shape: Shape, puzzle: np.ndarray, solution: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A puzzle and its solution, as tokens (n^2,) of which 0 is padding and 1 a blank, under a symmetry of Sudoku."""
    cells, digits = draw_symmetry(shape, generator)
    tokens = np.concatenate([[0], digits + 1])
    return tokens[puzzle[cells]], tokens[solution[cells]]


def under_square_symmetry(
    puzzle: np.ndarray, solution: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A puzzle and its solution, (n^2,), turned and mirrored: one of the eight ways to lay a square on itself."""
    cells = square_symmetries(len(puzzle))[generator.integers(8)]
    return puzzle[cells], solution[cells]


def square_symmetries(cells: int) -> np.ndarray:
    """Where each cell comes from in the eight symmetries of a square, (8, n^2)."""
    size = round(cells**0.5)
    grid = np.arange(cells).reshape(size, size)
    turned = [np.rot90(grid, quarter) for quarter in range(4)]
    return np.stack([laid.ravel() for grid in turned for laid in (grid, grid.T)])


def alike_in_sudoku(tokens: np.ndarray, shape: Shape) -> np.ndarray:
    """Equal numbers for puzzles, as tokens (rows, n^2), that are one under a symmetry; uint64 (rows,)."""
    return invariants((tokens.astype(np.int8) - 1).clip(min=0), shape)


def alike_in_a_square(tokens: np.ndarray) -> np.ndarray:
    """Likewise under the symmetries of a square: the first of the eight in alphabetical order, bytes (rows,)."""
    laid = tokens.astype(np.uint8)[:, square_symmetries(tokens.shape[1])]
    return np.array([min(row.tobytes() for row in rows) for rows in laid], dtype=object).astype(bytes)


def alike_as_they_stand(tokens: np.ndarray) -> np.ndarray:
    """Equal bytes for puzzles with equal tokens (rows, n^2), bytes (rows,)."""
    found: np.ndarray = np.ascontiguousarray(tokens, dtype=np.uint8).view(f"S{tokens.shape[1]}").ravel()
    return found
