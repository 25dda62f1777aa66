"""Sudoku with boxes of any size: grids, minimal puzzles with one solution, and the symmetries of puzzles.

A grid of size n = r c has n boxes of r rows and c columns. A blank is 0, and digits are 1 to n. All functions take many
grids at once, flattened row by row: (rows, n^2) int8. The candidates of a cell are the bits of an integer, with bit d -
1 for digit d.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

Candidates = np.ndarray


@dataclass(frozen=True)
class Shape:
    """Shape of a Sudoku's boxes, in rows and columns: 2 x 2 for 4 x 4 Sudoku, 2 x 3 for 6 x 6, 3 x 3 for 9 x 9."""

    box_rows: int
    box_columns: int

    @property
    def size(self) -> int:
        """Number of digits, which is also the number of cells along each side, n."""
        return self.box_rows * self.box_columns

    @property
    def cells(self) -> int:
        """Number of cells of the whole grid, n^2."""
        return self.size**2

    @cached_property
    def units(self) -> np.ndarray:
        """Cell indices of every row, column and box of the Sudoku, (3 n, n)."""
        grid = np.arange(self.cells).reshape(self.size, self.size)
        boxes = grid.reshape(self.box_columns, self.box_rows, self.box_rows, self.box_columns).swapaxes(1, 2)
        return np.concatenate([grid, grid.T, boxes.reshape(self.size, self.size)])

    @cached_property
    def peers(self) -> np.ndarray:
        """Indices of the other cells in the row, column and box of each cell, (n^2, peers)."""
        seen = np.zeros((self.cells, self.cells), dtype=bool)
        for unit in self.units:
            seen[np.ix_(unit, unit)] = True
        np.fill_diagonal(seen, False)
        return np.stack([np.flatnonzero(row) for row in seen])


SHAPES = {4: Shape(2, 2), 6: Shape(2, 3), 9: Shape(3, 3)}


def to_candidates(puzzles: np.ndarray, shape: Shape) -> Candidates:
    """Return the candidate digits of each cell as bits, (rows, n^2) int32.

    A blank has all digits as candidates. Any other cell has its given digit.
    """
    everything = (1 << shape.size) - 1
    return np.where(puzzles > 0, 1 << (puzzles.astype(np.int32) - 1).clip(min=0), everything).astype(np.int32)


def propagate_once(candidates: Candidates, shape: Shape) -> tuple[Candidates, np.ndarray]:
    """Remove impossible candidates once, in all rows, columns and boxes at the same time.

    The digit of a solved cell is removed from its peers, the other cells of its units. A digit with only one possible
    cell in a unit is set in that cell.

    Returns:
        The remaining candidates, and a mask of the grids with a contradiction, (rows,) bool.
    """
    fixed = np.where((candidates & (candidates - 1)) == 0, candidates, 0)
    remaining = candidates & ~np.bitwise_or.reduce(fixed[:, shape.peers], axis=2)
    members = remaining[:, shape.units]  # (rows, units, n)
    once, more = np.zeros_like(members[..., 0]), np.zeros_like(members[..., 0])
    for member in range(shape.size):
        more |= once & members[..., member]
        once |= members[..., member]
    single = members & (once & ~more)[..., None]
    forced = np.zeros_like(remaining)
    for unit, cells in enumerate(shape.units):
        forced[:, cells] |= single[:, unit]
    has_no_place = (once != (1 << shape.size) - 1).any(axis=1)
    clashes = ((forced & (forced - 1)) != 0).any(axis=1)
    return np.where(forced > 0, forced, remaining), (remaining == 0).any(axis=1) | has_no_place | clashes


def propagate(candidates: Candidates, shape: Shape) -> tuple[Candidates, np.ndarray]:
    """Remove impossible candidates until nothing changes, with the rule of `propagate_once`."""
    candidates = candidates.copy()
    failed = np.zeros(len(candidates), dtype=bool)
    active = np.arange(len(candidates))
    while len(active):
        before = candidates[active]
        candidates[active], failed[active] = propagate_once(before, shape)
        active = active[~failed[active] & (candidates[active] != before).any(axis=1)]
    return candidates, failed


def count_rounds(puzzles: np.ndarray, solved: np.ndarray, shape: Shape) -> np.ndarray:
    """Return the difficulty of each puzzle, which is the number of propagation rounds that fill it, (rows,) int64.

    If propagation is stuck, the cell with the fewest candidates gets its right digit. This lucky guess counts as a
    round.

    Args:
        puzzles: Puzzles, (rows, n^2).
        solved: Solutions of the puzzles, (rows, n^2).
        shape: Shape of the grids.
    """
    candidates, answers = to_candidates(puzzles, shape), to_candidates(solved, shape)
    rounds = np.zeros(len(puzzles), dtype=np.int64)
    open_ones = (candidates != answers).any(axis=1)
    while open_ones.any():
        active = np.flatnonzero(open_ones)
        before = candidates[active]
        after, _ = propagate_once(before, shape)
        stuck = np.flatnonzero((after == before).all(axis=1))
        cells = _find_most_constrained(after[stuck], shape)
        after[stuck, cells] = answers[active[stuck], cells]
        candidates[active] = after
        rounds[active] += 1
        open_ones[active] = (after != answers[active]).any(axis=1)
    return rounds


def solutions(candidates: Candidates, shape: Shape, generator: np.random.Generator | None = None) -> np.ndarray:
    """Solve Sudoku grids: return one solution of each, or zeros if it has none, (rows, n^2) int8.

    The search is depth-first in all grids at once. Each step propagates constraints, then guesses in the cell with the
    fewest candidates.

    Args:
        candidates: Candidates of every cell, (rows, n^2).
        shape: Shape of the grids.
        generator: Generator of the guesses, for a random solution. None means that the lowest digit is guessed first.
    """
    grids = np.zeros(candidates.shape, dtype=np.int8)
    owners, stack = np.arange(len(candidates)), candidates
    solved = np.zeros(len(candidates), dtype=bool)
    waiting: list[tuple[np.ndarray, Candidates]] = []
    while len(owners) or waiting:
        if not len(owners):
            owners, stack = waiting.pop()
            open_ones = ~solved[owners]
            owners, stack = owners[open_ones], stack[open_ones]
            continue
        stack, failed = propagate(stack, shape)
        owners, stack = owners[~failed], stack[~failed]
        complete = (np.bitwise_count(stack) == 1).all(axis=1)
        grids[owners[complete]] = np.log2(stack[complete]).astype(np.int8) + 1
        solved[owners[complete]] = True
        owners, stack = owners[~complete], stack[~complete]
        if not len(owners):
            continue
        rows = np.arange(len(owners))
        cells = _find_most_constrained(stack, shape)
        options = stack[rows, cells]
        guess = _take_lowest_bit(options) if generator is None else _draw_bit(options, shape.size, generator)
        alternatives = stack.copy()
        alternatives[rows, cells] = options & ~guess
        waiting.append((owners, alternatives))
        stack[rows, cells] = guess
    return grids


def draw_grids(rows: int, shape: Shape, generator: np.random.Generator) -> np.ndarray:
    """Draw filled Sudoku grids, (rows, n^2) int8. Every grid is possible, but not all are equally likely."""
    return solutions(to_candidates(np.zeros((rows, shape.cells), dtype=np.int8), shape), shape, generator)


def reduce_to_minimal(grids: np.ndarray, shape: Shape, generator: np.random.Generator, blanks: int) -> np.ndarray:
    """Remove digits from filled grids as long as the solution stays unique, and return the minimal puzzles.

    Digits are removed in random order as long as the solution stays unique.

    Args:
        grids: Filled grids, (rows, n^2).
        shape: Shape of the grids.
        generator: Generator of the random order.
        blanks: Maximum number of blanks of a puzzle. A puzzle with fewer blanks is minimal: every digit is needed.
    """
    puzzles = grids.copy()
    order = generator.random(grids.shape).argsort(axis=1)
    rows = np.arange(len(grids))
    for step in range(shape.cells):
        cells = order[:, step]
        candidates = to_candidates(puzzles, shape)
        # Another solution would have another digit here: try all digits but this one.
        candidates[rows, cells] = ((1 << shape.size) - 1) & ~candidates[rows, cells]
        is_redundant = (solutions(candidates, shape)[:, 0] == 0) & ((puzzles == 0).sum(axis=1) < blanks)
        puzzles[rows[is_redundant], cells[is_redundant]] = 0
    return puzzles


def draw_symmetry(shape: Shape, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw a symmetry of Sudoku. Return the source of each cell, (n^2,), and the new digits, (n + 1,) int8.

    A symmetry renames the digits and permutes the bands, the rows of each band, the stacks and the columns of each
    stack. If boxes are square, it transposes the grid with probability 1/2.
    """
    digits = np.concatenate([[0], generator.permutation(shape.size) + 1]).astype(np.int8)
    down = _shuffle_lines(shape.box_columns, shape.box_rows, generator)
    across = _shuffle_lines(shape.box_rows, shape.box_columns, generator)
    cells = (down[:, None] * shape.size + across[None, :]).ravel()
    if shape.box_rows == shape.box_columns and generator.random() < 0.5:
        cells = cells.reshape(shape.size, shape.size).T.ravel()
    return cells, digits


def _shuffle_lines(bands: int, lines: int, generator: np.random.Generator) -> np.ndarray:
    """Draw a random order of a Sudoku's rows or columns that keeps the lines of a band together."""
    order = [band * lines + generator.permutation(lines) for band in generator.permutation(bands)]
    return np.concatenate(order)


def invariants(puzzles: np.ndarray, shape: Shape, rounds: int = 4) -> np.ndarray:
    """Return a hash of each puzzle that all its symmetric variants share, (rows,) uint64.

    The method is colour refinement of cells (Weisfeiler and Leman 1968). The colour of a cell follows from the
    multisets of colours in its row and column, in its box, and at the cells with its digit. Rows and columns are
    treated alike, so that a transposed puzzle keeps its number. The digits themselves are not used.
    """
    size, cells = shape.size, np.arange(shape.cells)
    lines = cells // size, cells % size
    bands = lines[0] // shape.box_rows, lines[1] // shape.box_columns
    boxes = bands[0] * (size // shape.box_columns) + bands[1]
    colours = _mix_bits(puzzles > 0)
    for _ in range(rounds):
        same_digit = np.zeros_like(colours)
        for digit in range(1, size + 1):
            here = puzzles == digit
            same_digit += np.where(here, np.where(here, colours, 0).sum(axis=1, keepdims=True), 0)
        by_line = sum(
            _mix_bits(_sum_groups(colours, line) + np.uint64(3) * _mix_bits(_sum_groups(colours, band)))
            for line, band in zip(lines, bands, strict=True)
        )
        box = np.uint64(5) * _mix_bits(_sum_groups(colours, boxes))
        colours = _mix_bits(colours + np.uint64(7) * by_line + box + np.uint64(11) * _mix_bits(same_digit))
    total: np.ndarray = colours.sum(axis=1)
    return total


def _sum_groups(colours: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return for every cell the sum of the values in its row, column or box."""
    member = (groups[:, None] == np.arange(groups.max() + 1)).astype(np.uint64)
    sums: np.ndarray = np.matmul(colours, member)[:, groups]
    return sums


def _mix_bits(values: np.ndarray) -> np.ndarray:
    """Return a well-spread hash of 64-bit numbers (the finaliser of splitmix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        mixed = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _find_most_constrained(candidates: Candidates, shape: Shape) -> np.ndarray:
    """Return the index of the open cell with the fewest candidate digits in each grid, (rows,)."""
    counts = np.bitwise_count(candidates)
    cells: np.ndarray = np.where(counts == 1, shape.size + 1, counts).argmin(axis=1)
    return cells


def _take_lowest_bit(options: np.ndarray) -> np.ndarray:
    lowest: np.ndarray = options & -options
    return lowest


def _draw_bit(options: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """Draw one of the set bits of each number at random."""
    bits = 1 << np.arange(size, dtype=options.dtype)
    lots = np.where(options[:, None] & bits, generator.random((len(options), size)), -1.0)
    drawn_bits: np.ndarray = bits[lots.argmax(axis=1)]
    return drawn_bits


def apply_sudoku_symmetry(
    shape: Shape, puzzle: np.ndarray, solution: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Apply a random symmetry of Sudoku to a puzzle and its solution.

    Both are tokens (n^2,), with 0 for padding and 1 for a blank.
    """
    cells, digits = draw_symmetry(shape, generator)
    tokens = np.concatenate([[0], digits + 1])
    return tokens[puzzle[cells]], tokens[solution[cells]]


def apply_square_symmetry(
    puzzle: np.ndarray, solution: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Apply one of the eight symmetries of a square, drawn at random, to a puzzle and its solution, each (n^2,)."""
    cells = list_square_symmetries(len(puzzle))[generator.integers(8)]
    return puzzle[cells], solution[cells]


def list_square_symmetries(cells: int) -> np.ndarray:
    """Return the source of each cell in the eight symmetries of a square, (8, n^2)."""
    size = round(cells**0.5)
    grid = np.arange(cells).reshape(size, size)
    turned = [np.rot90(grid, quarter) for quarter in range(4)]
    return np.stack([laid.ravel() for grid in turned for laid in (grid, grid.T)])


def compute_sudoku_keys(tokens: np.ndarray, shape: Shape) -> np.ndarray:
    """Return hashes, (rows,) uint64, that are equal for puzzles (rows, n^2) that a Sudoku symmetry maps to each other.

    Puzzles are given as tokens.
    """
    return invariants((tokens.astype(np.int8) - 1).clip(min=0), shape)


def compute_square_keys(tokens: np.ndarray) -> np.ndarray:
    """Return bytes, (rows,), that are equal for puzzles that a rotation or reflection maps to each other.

    The bytes are the smallest of the eight variants.
    """
    laid = tokens.astype(np.uint8)[:, list_square_symmetries(tokens.shape[1])]
    return np.array([min(row.tobytes() for row in rows) for rows in laid], dtype=object).astype(bytes)


def compute_token_keys(tokens: np.ndarray) -> np.ndarray:
    """Return the tokens of each puzzle as bytes, (rows,), to compare puzzles exactly."""
    keys: np.ndarray = np.ascontiguousarray(tokens, dtype=np.uint8).view(f"S{tokens.shape[1]}").ravel()
    return keys
