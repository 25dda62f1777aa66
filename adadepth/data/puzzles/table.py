"""Puzzles of the hub or of files, Sudoku-Extreme and Maze-Hard: tables of a character a cell, and published arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from adadepth.config import Symmetries
from adadepth.data.labelled.contract import LabelledData
from adadepth.data.labelled.held_out import Named, split_examples
from adadepth.data.labelled.splits import open_splits
from adadepth.data.labelled.table import Table, require_columns
from adadepth.data.puzzles.examples import PuzzleExamples, Symmetry, puzzle_data
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
    from adadepth.config import PuzzleTableConfig

_UNKNOWN = 0  # padding, which no text has
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
    """All rows of a table."""
    lookup = np.zeros(128, dtype=np.int8)
    for number, symbol in enumerate(dataset.symbols, 1):
        lookup[ord(symbol)] = number
    parts = list(_parts(table, dataset, lookup))
    if not parts:
        raise DataError(f"{table.label}: no rows")
    return PuzzleExamples(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _parts(table: Table, dataset: PuzzleTableConfig, lookup: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Puzzles, answers and difficulties, some rows at a time."""
    first, length = 0, None
    for rows in table.batches():
        tokens = []
        for column in (dataset.question_column, dataset.answer_column):
            texts = rows[column]
            length = len(texts[0]) if length is None else length
            tokens.append(_tokens(texts, length, lookup, f"{table.label}: column {column}, row", first))
        difficulty = (tokens[0] != tokens[1]).sum(axis=1)
        if dataset.difficulty_column is not None:
            difficulty = np.array([int(value) for value in rows[dataset.difficulty_column]])
        yield *tokens, difficulty
        first += len(rows[dataset.question_column])


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
