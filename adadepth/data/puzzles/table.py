"""Puzzles of the hub or of files, Sudoku-Extreme and Maze-Hard: tables of a character a cell, and published arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.config.puzzles import Symmetries
from adadepth.data.labelled.contract import LabelledData
from adadepth.data.labelled.held_out import Named, split_examples
from adadepth.data.labelled.splits import open_splits
from adadepth.data.labelled.table import Table, require_columns
from adadepth.data.puzzles.examples import PuzzleExamples, Symmetry, count_cells, puzzle_data
from adadepth.data.puzzles.published import is_published, read_published
from adadepth.data.puzzles.sudoku import SHAPES
from adadepth.data.puzzles.symmetries import (
    alike_as_they_stand,
    alike_in_a_square,
    alike_in_sudoku,
    under_square_symmetry,
    under_sudoku_symmetry,
)
from adadepth.errors import ConfigError, DataError

if TYPE_CHECKING:
    from adadepth.config.puzzles import PuzzleTableConfig

_UNKNOWN = 0  # padding, which no text has
_DIGITS = 18  # of a number that fits into 64 bits
Splits = tuple[Mapping[str, Named], Mapping[str, PuzzleExamples]]


def load_puzzle_table(dataset: PuzzleTableConfig, seed: int) -> LabelledData:
    """Puzzles of every split; training puzzles that are an evaluation puzzle under a symmetry are left out.

    Raises:
        DataError: A text has another length than the first, or a character that is no symbol; a folder as the published
            builders write it is damaged; no training puzzle is left.
        ConfigError: Puzzles do not have the shape that their symmetries need.
    """
    splits, stores = _published(dataset) if is_published(dataset.path) else _tables(dataset)
    train, evaluation, _ = split_examples(dataset, splits, stores, PuzzleExamples.chosen)
    lengths = {examples.puzzles.shape[1] for examples in (train, *evaluation.values())}
    if len(lengths) > 1:
        raise DataError(f"dataset.path={dataset.path}: puzzles of {' and '.join(map(str, sorted(lengths)))} cells")
    kept = _prepared(train, evaluation, dataset, seed)
    if not len(kept):
        raise DataError(f"dataset.path={dataset.path}: every training puzzle is one of the evaluation puzzles")
    return puzzle_data(dataset, kept, evaluation, dataset.symbols, {"left_out": len(train) - len(kept)})


def _published(dataset: PuzzleTableConfig) -> Splits:
    splits = read_published(dataset)
    return splits, {name: split.examples for name, split in splits.items()}


def _tables(dataset: PuzzleTableConfig) -> Splits:
    columns = [dataset.question_column, dataset.answer_column]
    tables = open_splits(dataset, {"question_column": columns[:1], "answer_column": columns[1:]})
    if dataset.difficulty_column is not None:
        for table in tables.values():
            require_columns(table, "difficulty_column", [dataset.difficulty_column])
    return tables, {split: read_puzzles(table, dataset) for split, table in tables.items()}


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
    train: PuzzleExamples, evaluation: Mapping[str, PuzzleExamples], dataset: PuzzleTableConfig, seed: int
) -> PuzzleExamples:
    """The training puzzles under symmetries, without those that are an evaluation puzzle under one."""
    symmetry, alike = _symmetry(dataset, train.puzzles.shape[1])
    # Rows of one example are the same under symmetries; where none is known, each is compared as it stands.
    rows = train.puzzles if symmetry is None else train.puzzles[train.starts[:-1]]
    known = np.isin(alike(rows), np.concatenate([alike(examples.puzzles) for examples in evaluation.values()]))
    kept = train.without(np.logical_or.reduceat(known, train.starts[:-1]) if symmetry is None else known)
    kept.symmetry, kept.seed = symmetry, seed
    return kept


def _symmetry(dataset: PuzzleTableConfig, cells: int) -> tuple[Symmetry | None, Callable[[np.ndarray], np.ndarray]]:
    """What is drawn in training, and what tells puzzles apart that are none of each other's under it."""
    if dataset.symmetries is Symmetries.none:
        return None, alike_as_they_stand
    size = math.isqrt(cells)
    if size**2 != cells or (dataset.symmetries is Symmetries.sudoku and size not in SHAPES):
        raise ConfigError(f"dataset.symmetries={dataset.symmetries}: the puzzles have {cells} cells")
    if dataset.symmetries is Symmetries.square:
        return under_square_symmetry, alike_in_a_square
    return partial(under_sudoku_symmetry, SHAPES[size]), partial(alike_in_sudoku, shape=SHAPES[size])
