"""Loading of puzzle folders in the format of HRM and TRM (NumPy arrays, one folder per split), and of puzzle tables.

    <split>/dataset.json                    seq_len L, vocab_size V, pad_id and ignore_label_id 0, sets ["all"], ...
    <split>/all__inputs.npy, __labels.npy   tokens (rows, L); 0 is padding, and as a label it is ignored
    <split>/all__puzzle_indices.npy         first row of every puzzle, and the number of rows, (puzzles + 1,)
    <split>/all__group_indices.npy          first puzzle of every group, and the number of puzzles, (groups + 1,)
    <split>/all__puzzle_identifiers.npy     kind of every puzzle, (puzzles,); identifiers.json names them

A group is a puzzle and its augmentations. An epoch reads one puzzle of each group. Sudoku-Extreme (V = 11: a blank is
1, digits are 2 to 10) and Maze-Hard (V = 6) have one kind of puzzle.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adadepth.config.data import Symmetries
from adadepth.data.cache import require_unchanged
from adadepth.data.labelled.splits import RowSource, list_table_splits, open_splits, split_examples
from adadepth.data.puzzles.dataset import PuzzleExamples, Symmetry, build_puzzle_data, count_cells
from adadepth.data.puzzles.sudoku import (
    SHAPES,
    apply_square_symmetry,
    apply_sudoku_symmetry,
    compute_square_keys,
    compute_sudoku_keys,
    compute_token_keys,
)
from adadepth.data.run_data import RunData
from adadepth.data.text.local_files import to_path
from adadepth.data.text.table import ROW_LOCATIONS, DataTable, Rows, require_columns
from adadepth.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from adadepth.config.data import CellCount, PuzzleTableConfig


_FACTS = "dataset.json"
_COLUMNS = ("question_column", "answer_column", "difficulty_column")


class PublishedSplit(NamedTuple):
    """Puzzles of one split of a puzzle folder, and their source."""

    label: str
    examples: PuzzleExamples


def is_published(path: Any) -> bool:
    """Return whether a folder has puzzle splits in the format of HRM and TRM, including damaged ones."""
    if not isinstance(path, str) or not (folder := to_path("dataset.path", path)).is_dir():
        return False
    return any(any(folder.glob(f"*/{name}")) for name in (_FACTS, "all__*.npy"))


def read_published(dataset: PuzzleTableConfig) -> dict[str, PublishedSplit]:
    """Load the configured splits of a puzzle folder in the format of HRM and TRM. Evaluation splits include every row.

    Raises:
        DataError: If a split, a file or a row is missing, damaged, or not in the published format.
        ConfigError: If the settings name columns, because arrays have no columns.
    """
    for field in fields(dataset):
        if field.name in _COLUMNS and (value := getattr(dataset, field.name)) != field.default:
            raise ConfigError(f"dataset.{field.name}={value}: dataset.path={dataset.path} has arrays, but no columns")
    folder = to_path("dataset.path", dataset.path)
    splits = {}
    for split in list_table_splits(dataset):
        if not (folder / split).is_dir():
            names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
            key = "train_split" if split == dataset.train_split else "evaluation_splits"
            hint = f"there is {', '.join(names)}{nearest(split, names)}"
            raise DataError(f"dataset.{key}={split}: no such folder in dataset.path={dataset.path}; {hint}")
        has_groups = split == dataset.train_split
        examples = _read_split(folder / split, len(dataset.symbols) + 1, dataset.counted, has_groups=has_groups)
        splits[split] = PublishedSplit(f"dataset.path={folder / split}", examples)
    return splits


def _read_split(folder: Path, symbols: int, counted: CellCount, *, has_groups: bool) -> PuzzleExamples:
    """Load all puzzles of one split's folder. With ``has_groups``, each group of puzzles is one example."""
    facts = _read_facts(folder, symbols)
    inputs, labels = (_read_published_tokens(folder, name, facts) for name in ("inputs", "labels"))
    if inputs.shape != labels.shape:
        raise _make_damage_error(folder, "labels", f"has shape {labels.shape}, but the inputs have {inputs.shape}")
    first_rows = _read_starts(folder, "puzzle_indices", len(inputs))
    first_puzzles = _read_starts(folder, "group_indices", len(first_rows) - 1)
    kinds = _open_array(folder, "puzzle_identifiers", 1)
    if len(kinds) != len(first_rows) - 1 or kinds.any():
        raise _make_damage_error(folder, "puzzle_identifiers", f"must be {len(first_rows) - 1} zeros, one per puzzle")
    if len(first_puzzles) - 1 != facts["total_groups"]:
        groups = f"has {len(first_puzzles) - 1} groups, {_FACTS} says total_groups={facts['total_groups']}"
        raise _make_damage_error(folder, "group_indices", groups)
    difficulty, counts = count_cells(inputs, labels, counted)
    return PuzzleExamples(inputs, labels, difficulty, counts, first_rows[first_puzzles] if has_groups else None)


def _read_facts(folder: Path, symbols: int) -> dict[str, Any]:
    """Load a puzzle folder's metadata file dataset.json, and raise an error for a missing or wrong key."""
    path = folder / _FACTS
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"dataset.path={path}: is missing") from error
    except (OSError, ValueError) as error:
        raise DataError(f"dataset.path={path}: cannot be read as JSON ({error})") from error
    expected = {"vocab_size": symbols, "pad_id": 0, "ignore_label_id": 0, "num_puzzle_identifiers": 1, "sets": ["all"]}
    reasons = {
        "vocab_size": f": padding and the {symbols - 1} of dataset.symbols",
        "num_puzzle_identifiers": ": puzzles of several kinds are not supported",
    }
    for key in ("seq_len", "total_groups", *expected):
        if not isinstance(facts, dict) or key not in facts:
            raise DataError(f"dataset.path={path}: lacks {key}")
        if key in expected and facts[key] != expected[key]:
            reason = reasons.get(key, "")
            raise DataError(f"dataset.path={path}: {key}={facts[key]}, but must be {expected[key]}{reason}")
    return facts


def _read_published_tokens(folder: Path, name: str, facts: dict[str, Any]) -> np.ndarray:
    """Return the cells of the puzzles in a folder as tokens, (rows, L) int8."""
    tokens = _open_array(folder, name, 2)
    if tokens.shape[1] != facts["seq_len"]:
        raise _make_damage_error(
            folder, name, f"has {tokens.shape[1]} cells a row, {_FACTS} says seq_len={facts['seq_len']}"
        )
    low, high, last = tokens.min(), tokens.max(), facts["vocab_size"] - 1
    if low < 0 or high > last:
        raise _make_damage_error(
            folder, name, f"has the token {low if low < 0 else high}; tokens must be from 0 to {last}"
        )
    return tokens.astype(np.int8)


def _read_starts(folder: Path, name: str, count: int) -> np.ndarray:
    """Load the offset of each group in a file of puzzles, followed by the end of the last group, int64."""
    starts = _open_array(folder, name, 1).astype(np.int64)
    if starts[0] != 0 or starts[-1] != count or (np.diff(starts) <= 0).any():
        raise _make_damage_error(folder, name, f"must rise from 0 to {count}")
    return starts


def _open_array(folder: Path, name: str, dimensions: int) -> np.ndarray:
    """Open an array file of integers as a memory map, because augmented puzzles can exceed the memory."""
    path = _get_array_path(folder, name)
    try:
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise DataError(f"dataset.path={path}: is missing") from error
    except (OSError, ValueError) as error:
        raise _make_damage_error(folder, name, f"cannot be read as an array ({error})") from error
    if array.ndim != dimensions or not array.size or not np.issubdtype(array.dtype, np.integer):
        shape = f"{array.dtype} of shape {array.shape}"
        raise _make_damage_error(folder, name, f"is {shape}; whole numbers of {dimensions} dimensions are needed")
    return array


def _get_array_path(folder: Path, name: str) -> Path:
    return folder / f"all__{name}.npy"


def _make_damage_error(folder: Path, name: str, what: str) -> DataError:
    return DataError(f"dataset.path={_get_array_path(folder, name)}: {what}")


_UNKNOWN = 0  # padding, which no text has
_DIGITS = 18  # of a number that fits into 64 bits
Splits = tuple[Mapping[str, RowSource], Mapping[str, PuzzleExamples]]


def load_puzzle_table(dataset: PuzzleTableConfig, seed: int) -> RunData:
    """Load the puzzles of every split of a table or a puzzle folder.

    A training puzzle that equals an evaluation puzzle under a symmetry is removed.

    Raises:
        DataError: If a text differs in length from the first one, or has a character that is not a symbol. Also if a
            published folder is damaged, or if no training puzzle remains.
        ConfigError: If the puzzles do not have the shape that their symmetries require.
    """
    splits, stores = _open_published(dataset) if is_published(dataset.path) else _read_tables(dataset)
    train, evaluation, _ = split_examples(dataset, splits, stores, PuzzleExamples.select)
    lengths = {examples.puzzles.shape[1] for examples in (train, *evaluation.values())}
    if len(lengths) > 1:
        raise DataError(f"dataset.path={dataset.path}: puzzles of {' and '.join(map(str, sorted(lengths)))} cells")
    remaining = _prepare_training(train, evaluation, dataset, seed)
    if not len(remaining):
        raise DataError(f"dataset.path={dataset.path}: every training puzzle is one of the evaluation puzzles")
    facts = {
        "left_out": len(train) - len(remaining),
        "sources": _digest_puzzles({dataset.train_split: train, **evaluation}),
    }
    return build_puzzle_data(dataset, remaining, evaluation, dataset.symbols, facts)


def _digest_puzzles(splits: Mapping[str, PuzzleExamples]) -> dict[str, str]:
    """Return a hash of the cells of every split, by name of the split."""
    digests = {}
    for split, examples in splits.items():
        cells = hashlib.blake2b(examples.puzzles.tobytes(), digest_size=16)
        cells.update(examples.solutions.tobytes())
        digests[split] = cells.hexdigest()
    return digests


def _open_published(dataset: PuzzleTableConfig) -> Splits:
    splits = read_published(dataset)
    return splits, {name: split.examples for name, split in splits.items()}


def _read_tables(dataset: PuzzleTableConfig) -> Splits:
    columns = [dataset.question_column, dataset.answer_column]
    tables = open_splits(dataset, {"question_column": columns[:1], "answer_column": columns[1:]})
    if dataset.difficulty_column is not None:
        for table in tables.values():
            require_columns(table, "difficulty_column", [dataset.difficulty_column])
    with require_unchanged([source for table in tables.values() for source in table.sources]):
        return tables, {split: read_puzzles(table, dataset) for split, table in tables.items()}


def read_puzzles(table: DataTable, dataset: PuzzleTableConfig) -> PuzzleExamples:
    """Read all puzzles of a table. Its other columns of whole numbers become attributes of the puzzles."""
    lookup = np.zeros(128, dtype=np.int8)
    for number, symbol in enumerate(dataset.symbols, 1):
        lookup[ord(symbol)] = number
    parts = list(_read_parts(table, dataset, lookup))
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
            raise DataError(
                f"dataset.difficulty_column={column}: {table.label} has values other than integers in that column"
            )
        difficulty = columns[column]
    return PuzzleExamples(puzzles, solutions, difficulty, counted | columns)


def _read_parts(
    table: DataTable, dataset: PuzzleTableConfig, lookup: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
    """Yield puzzles, answers and integer columns of a table, one part of its rows at a time."""
    length = None
    texts_in = dataset.question_column, dataset.answer_column
    for rows in table.read_batches():
        tokens = []
        for column in texts_in:
            length = len(rows[column][0]) if length is None else length
            tokens.append(_encode_texts(rows, column, length, lookup))
        numbers = {
            name: np.array(list(map(int, rows[name])), dtype=np.int64)
            for name in table.columns
            if name not in texts_in and all(map(_is_whole, rows[name]))
        }
        yield tokens[0], tokens[1], numbers


def _is_whole(value: Any) -> bool:
    """Return whether a cell is a non-negative integer, or the text of one."""
    text = str(value)
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def _encode_texts(rows: Rows, column: str, length: int, lookup: np.ndarray) -> np.ndarray:
    """Convert a column of puzzles in text form to tokens, (rows, length) int8."""
    texts, locations = rows[column], rows[ROW_LOCATIONS]
    for text, location in zip(texts, locations, strict=True):
        if not isinstance(text, str) or len(text) != length or not text.isascii():
            raise DataError(f"{location}, column {column}: must be a text of {length} symbols, like the first one")
    tokens = lookup[np.frombuffer("".join(texts).encode("ascii"), dtype=np.uint8).reshape(len(texts), length)]
    if (tokens == _UNKNOWN).any():
        row, cell = np.argwhere(tokens == _UNKNOWN)[0]
        raise DataError(f"{locations[row]}, column {column}: {texts[row][cell]!r} is not in dataset.symbols")
    return tokens


def _prepare_training(
    train: PuzzleExamples, evaluation: Mapping[str, PuzzleExamples], dataset: PuzzleTableConfig, seed: int
) -> PuzzleExamples:
    """Drop training puzzles that occur in an evaluation split; return the others and the augmenting symmetry.

    A puzzle that equals an evaluation puzzle under a symmetry is removed.
    """
    symmetry, alike = _choose_symmetry(dataset, train.puzzles.shape[1])
    # Rows of one example are the same under symmetries; without a symmetry, each row is compared.
    rows = train.puzzles if symmetry is None else train.puzzles[train.starts[:-1]]
    is_evaluated = np.isin(alike(rows), np.concatenate([alike(examples.puzzles) for examples in evaluation.values()]))
    remaining = train.exclude(
        np.logical_or.reduceat(is_evaluated, train.starts[:-1]) if symmetry is None else is_evaluated
    )
    remaining.symmetry, remaining.seed = symmetry, seed
    return remaining


def _choose_symmetry(
    dataset: PuzzleTableConfig, cells: int
) -> tuple[Symmetry | None, Callable[[np.ndarray], np.ndarray]]:
    """Return the symmetry that augments training puzzles, and a function that gives equivalent puzzles equal keys."""
    if dataset.symmetries is Symmetries.none:
        return None, compute_token_keys
    size = math.isqrt(cells)
    if size**2 != cells or (dataset.symmetries is Symmetries.sudoku and size not in SHAPES):
        raise ConfigError(f"dataset.symmetries={dataset.symmetries}: the puzzles have {cells} cells")
    if dataset.symmetries is Symmetries.square:
        return apply_square_symmetry, compute_square_keys
    return partial(apply_sudoku_symmetry, SHAPES[size]), partial(compute_sudoku_keys, shape=SHAPES[size])
