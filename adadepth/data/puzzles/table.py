"""Puzzles of a table, from the hub or from files: Sudoku-Extreme, Maze-Hard, and any other of a character a cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.config import CellCount, Symmetries
from adadepth.data.labelled.contract import LabelledData
from adadepth.data.labelled.held_out import split_examples
from adadepth.data.labelled.splits import open_splits
from adadepth.data.labelled.table import Table, require_columns
from adadepth.data.puzzles.examples import PuzzleExamples, Symmetry, puzzle_data
from adadepth.data.puzzles.sudoku import SHAPES
from adadepth.data.puzzles.symmetries import (
    alike_in_a_square,
    alike_in_sudoku,
    under_square_symmetry,
    under_sudoku_symmetry,
)
from adadepth.errors import ConfigError, DataError

if TYPE_CHECKING:
    from adadepth.config import PuzzleTableConfig

_UNKNOWN = 0  # padding, which no text has
_DIGITS = 18  # of a number that fits into 64 bits


def load_puzzle_table(dataset: PuzzleTableConfig, seed: int) -> LabelledData:
    """Puzzles of every split; training puzzles that are an evaluation puzzle under a symmetry are left out.

    Raises:
        DataError: A text has another length than the first, or a character that is no symbol.
        ConfigError: Puzzles do not have the shape that their symmetries need.
    """
    columns = [dataset.question_column, dataset.answer_column]
    tables = open_splits(dataset, {"question_column": columns[:1], "answer_column": columns[1:]})
    if dataset.difficulty_column is not None:
        for table in tables.values():
            require_columns(table, "difficulty_column", [dataset.difficulty_column])
    stores = {split: read_puzzles(table, dataset) for split, table in tables.items()}
    train, evaluation, _ = split_examples(dataset, tables, stores, PuzzleExamples.chosen)
    lengths = {examples.puzzles.shape[1] for examples in (train, *evaluation.values())}
    if len(lengths) > 1:
        raise DataError(f"dataset.path={dataset.path}: puzzles of {' and '.join(map(str, sorted(lengths)))} cells")
    before = len(train)
    if dataset.symmetries is not Symmetries.none:
        train = _prepared(train, evaluation, dataset, seed)
    return puzzle_data(dataset, train, evaluation, dataset.symbols, {"left_out": before - len(train)})


def read_puzzles(table: Table, dataset: PuzzleTableConfig) -> PuzzleExamples:
    """All rows of a table; its further columns of whole numbers are attributes of the puzzles."""
    lookup = np.zeros(128, dtype=np.int8)
    for number, symbol in enumerate(dataset.symbols, 1):
        lookup[ord(symbol)] = number
    parts = list(_parts(table, dataset, lookup))
    if not parts:
        raise DataError(f"{table.label}: no rows")
    puzzles, solutions = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    difficulty, counted = count_cells(puzzles, solutions, dataset.counted)
    columns = {
        name: np.concatenate([numbers[name] for *_, numbers in parts])
        for name in parts[0][2]
        if all(name in numbers for *_, numbers in parts)
    }
    if (column := dataset.difficulty_column) is not None:
        if column not in columns:
            raise DataError(f"dataset.difficulty_column={column}: {table.label} has others than whole numbers there")
        difficulty = columns[column]
    return PuzzleExamples(puzzles, solutions, difficulty, counted | columns)


def count_cells(
    puzzles: np.ndarray, solutions: np.ndarray, counted: CellCount
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The difficulty of puzzles by what is to be filled, (rows,) int64, and what reports call its count."""
    filled = (puzzles != solutions).sum(axis=1)
    if counted is CellCount.path_length:
        return filled + 1, {"path length": filled + 1}
    return filled, {"givens": puzzles.shape[1] - filled}


def _parts(
    table: Table, dataset: PuzzleTableConfig, lookup: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
    """Puzzles, answers and the columns of whole numbers, some rows at a time."""
    first, length = 0, None
    for rows in table.batches():
        tokens = []
        texts_in = dataset.question_column, dataset.answer_column
        for column in texts_in:
            texts = rows[column]
            length = len(texts[0]) if length is None else length
            tokens.append(_tokens(texts, length, lookup, f"{table.label}: column {column}, row", first))
        numbers = {name: np.array(list(map(int, values)), dtype=np.int64) for name, values in rows.items()
                   if name not in texts_in and all(map(_is_whole, values))}  # fmt: skip
        yield tokens[0], tokens[1], numbers
        first += len(rows[dataset.question_column])


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number from 0 on, or the text of one."""
    text = str(value)
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def _tokens(texts: list[Any], length: int, lookup: np.ndarray, where: str, first: int) -> np.ndarray:
    """Texts as tokens, (rows, length) int8."""
    for number, text in enumerate(texts, first):
        if not isinstance(text, str) or len(text) != length or not text.isascii():
            raise DataError(f"{where} {number}: must be a text of {length} symbols, as the first is")
    tokens = lookup[np.frombuffer("".join(texts).encode("ascii"), dtype=np.uint8).reshape(len(texts), length)]
    if (tokens == _UNKNOWN).any():
        row, cell = np.argwhere(tokens == _UNKNOWN)[0]
        raise DataError(f"{where} {first + row}: {texts[row][cell]!r} is none of dataset.symbols")
    return tokens


def _prepared(
    train: PuzzleExamples, evaluation: dict[str, PuzzleExamples], dataset: PuzzleTableConfig, seed: int
) -> PuzzleExamples:
    """The training puzzles under symmetries, without those that are an evaluation puzzle under one."""
    cells = train.puzzles.shape[1]
    size = math.isqrt(cells)
    if size**2 != cells or (dataset.symmetries is Symmetries.sudoku and size not in SHAPES):
        raise ConfigError(f"dataset.symmetries={dataset.symmetries}: the puzzles have {cells} cells")
    symmetry: Symmetry = under_square_symmetry
    alike: Callable[[np.ndarray], np.ndarray] = alike_in_a_square
    if dataset.symmetries is Symmetries.sudoku:
        symmetry = partial(under_sudoku_symmetry, SHAPES[size])
        alike = partial(alike_in_sudoku, shape=SHAPES[size])
    known = np.concatenate([alike(examples.puzzles) for examples in evaluation.values()])
    kept = train.without(np.isin(alike(train.puzzles), known))
    kept.symmetry, kept.seed = symmetry, seed
    return kept
