"""Folders as the published builders of HRM and TRM write them: arrays of numpy, a folder a split.

    <split>/dataset.json                    seq_len L, vocab_size V, pad_id and ignore_label_id 0, sets ["all"], ...
    <split>/all__inputs.npy, __labels.npy   tokens (rows, L); 0 is padding, and as a label nothing that is asked for
    <split>/all__puzzle_indices.npy         first row of every puzzle, and the number of rows, (puzzles + 1,)
    <split>/all__group_indices.npy          first puzzle of every group, and the number of puzzles, (groups + 1,)
    <split>/all__puzzle_identifiers.npy     kind of every puzzle, (puzzles,); identifiers.json names them

A group is a puzzle and its augmentations: an epoch reads one of each group. Sudoku-Extreme (V = 11: a blank is 1,
digits are 2 to 10) and Maze-Hard (V = 6) have one kind.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adadepth.data.labelled.held_out import table_splits
from adadepth.data.puzzles.examples import PuzzleExamples, count_cells
from adadepth.data.text.files import as_path
from adadepth.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from adadepth.config.puzzles import CellCount, PuzzleTableConfig

_FACTS = "dataset.json"
_COLUMNS = ("question_column", "answer_column", "difficulty_column")


class PublishedSplit(NamedTuple):
    """The puzzles of a split, and where they lie."""

    label: str
    examples: PuzzleExamples


def is_published(path: Any) -> bool:
    """Whether a folder has splits of this layout, be it a damaged one."""
    if not isinstance(path, str) or not (folder := as_path("dataset.path", path)).is_dir():
        return False
    return any(any(folder.glob(f"*/{name}")) for name in (_FACTS, "all__*.npy"))


def read_published(dataset: PuzzleTableConfig) -> dict[str, PublishedSplit]:
    """The splits that a configuration names; evaluation reads every row of its own.

    Raises:
        DataError: A split, a file or a row is absent or damaged, or not what the layout says.
        ConfigError: Columns are named, which arrays do not have.
    """
    for field in fields(dataset):
        if field.name in _COLUMNS and (value := getattr(dataset, field.name)) != field.default:
            raise ConfigError(f"dataset.{field.name}={value}: dataset.path={dataset.path} has arrays, and no columns")
    folder = as_path("dataset.path", dataset.path)
    found = {}
    for split in table_splits(dataset):
        if not (folder / split).is_dir():
            known = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
            key = "train_split" if split == dataset.train_split else "evaluation_splits"
            hint = f"there is {', '.join(known)}{nearest(split, known)}"
            raise DataError(f"dataset.{key}={split}: no such folder in dataset.path={dataset.path}; {hint}")
        has_groups = split == dataset.train_split
        examples = _read_split(folder / split, len(dataset.symbols) + 1, dataset.counted, has_groups=has_groups)
        found[split] = PublishedSplit(f"dataset.path={folder / split}", examples)
    return found


def _read_split(folder: Path, symbols: int, counted: CellCount, *, has_groups: bool) -> PuzzleExamples:
    """All puzzles of a folder; with groups, an example is a group."""
    facts = _facts(folder, symbols)
    inputs, labels = (_tokens(folder, name, facts) for name in ("inputs", "labels"))
    if inputs.shape != labels.shape:
        raise _damaged(folder, "labels", f"is of shape {labels.shape}, the inputs of {inputs.shape}")
    first_rows = _starts(folder, "puzzle_indices", len(inputs))
    first_puzzles = _starts(folder, "group_indices", len(first_rows) - 1)
    kinds = _array(folder, "puzzle_identifiers", 1)
    if len(kinds) != len(first_rows) - 1 or kinds.any():
        raise _damaged(folder, "puzzle_identifiers", f"must be {len(first_rows) - 1} zeros, one for every puzzle")
    if len(first_puzzles) - 1 != facts["total_groups"]:
        groups = f"has {len(first_puzzles) - 1} groups, {_FACTS} says total_groups={facts['total_groups']}"
        raise _damaged(folder, "group_indices", groups)
    difficulty, counts = count_cells(inputs, labels, counted)
    return PuzzleExamples(inputs, labels, difficulty, counts, first_rows[first_puzzles] if has_groups else None)


def _facts(folder: Path, symbols: int) -> dict[str, Any]:
    """What dataset.json says, as it has to be."""
    path = folder / _FACTS
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"dataset.path={path}: is missing") from error
    except (OSError, ValueError) as error:
        raise DataError(f"dataset.path={path}: cannot be read as JSON ({error})") from error
    wanted = {"vocab_size": symbols, "pad_id": 0, "ignore_label_id": 0, "num_puzzle_identifiers": 1, "sets": ["all"]}
    reasons = {
        "vocab_size": f": padding and the {symbols - 1} of dataset.symbols",
        "num_puzzle_identifiers": ": puzzles of several kinds are not read",
    }
    for key in ("seq_len", "total_groups", *wanted):
        if not isinstance(facts, dict) or key not in facts:
            raise DataError(f"dataset.path={path}: says no {key}")
        if key in wanted and facts[key] != wanted[key]:
            reason = reasons.get(key, "")
            raise DataError(f"dataset.path={path}: {key}={facts[key]}, must be {wanted[key]}{reason}")
    return facts


def _tokens(folder: Path, name: str, facts: dict[str, Any]) -> np.ndarray:
    """Tokens of the cells, (rows, L) int8."""
    tokens = _array(folder, name, 2)
    if tokens.shape[1] != facts["seq_len"]:
        raise _damaged(folder, name, f"has {tokens.shape[1]} cells a row, {_FACTS} says seq_len={facts['seq_len']}")
    low, high, last = tokens.min(), tokens.max(), facts["vocab_size"] - 1
    if low < 0 or high > last:
        raise _damaged(folder, name, f"has the token {low if low < 0 else high}; they must be from 0 to {last}")
    return tokens.astype(np.int8)


def _starts(folder: Path, name: str, count: int) -> np.ndarray:
    """Where each of some parts begins, and the end of the last, int64."""
    starts = _array(folder, name, 1).astype(np.int64)
    if starts[0] != 0 or starts[-1] != count or (np.diff(starts) <= 0).any():
        raise _damaged(folder, name, f"must rise from 0 to {count}")
    return starts


def _array(folder: Path, name: str, dimensions: int) -> np.ndarray:
    """A file of whole numbers, left on disk until it is used: augmented puzzles can be many."""
    path = _path(folder, name)
    try:
        found: np.ndarray = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError as error:
        raise DataError(f"dataset.path={path}: is missing") from error
    except (OSError, ValueError) as error:
        raise _damaged(folder, name, f"cannot be read as an array ({error})") from error
    if found.ndim != dimensions or not found.size or not np.issubdtype(found.dtype, np.integer):
        shape = f"{found.dtype} of shape {found.shape}"
        raise _damaged(folder, name, f"is {shape}; whole numbers of {dimensions} dimensions are needed")
    return found


def _path(folder: Path, name: str) -> Path:
    return folder / f"all__{name}.npy"


def _damaged(folder: Path, name: str, what: str) -> DataError:
    return DataError(f"dataset.path={_path(folder, name)}: {what}")
