"""Tokenised rows of a table as flat arrays, written to disk as they come and read through memory maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.stores.documents import map_file
from adadepth.data.text.tables import Rows, Table
from adadepth.data.text.tokenizer import encode_sentences
from adadepth.errors import DataError

_FILES = {"label": "labels.npy", "difficulty": "difficulty.npy"}


@dataclass(frozen=True)
class LabelledStore:
    """Token ids of rows with one or two texts, and their labels.

    Attributes:
        tokens: Ids without special tokens, (tokens,) uint16, or uint32 when the vocabulary needs it.
        offsets: Where each text begins in ``tokens``, row by row, then their number, (rows · texts + 1,) int64.
        labels: Class number or value of each row, (rows,) float64, or of several labels 1 or 0 for each class,
            (rows, C); None for an unlabelled table.
        texts: Texts of a row, 1 or 2.
        difficulty: How hard each row is, (rows,) float64; None where nothing says so.
        folder: Where the arrays are mapped from.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray | None
    texts: int
    folder: Path
    difficulty: np.ndarray | None = None

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // self.texts

    def row(self, number: int) -> list[np.ndarray]:
        """Return the ids of each text of a row."""
        bounds = self.offsets[number * self.texts : (number + 1) * self.texts + 1]
        return [self.tokens[start:end] for start, end in pairwise(bounds)]

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each row, all texts together, (rows,) int64."""
        return np.diff(self.offsets[:: self.texts])

    def classes(self) -> np.ndarray:
        """Return the labels of a table that has some."""
        assert self.labels is not None
        return self.labels

    def __reduce__(self) -> Any:
        """Send a loader worker the folder, not a copy of its content."""
        return open_store, (self.folder, self.texts)


def write_store(
    folder: Path,
    table: Table,
    columns: list[str],
    tokenizer: PreTrainedTokenizerFast,
    label_column: str | None,
    read_label: Callable[[Any], float],
    difficulty_column: str | None = None,
) -> None:
    """Tokenise the text columns of a table into files in ``folder``; without a ``label_column`` it has no labels.

    Raises:
        DataError: A text is not text, or a label or difficulty is not allowed; the message names the row.
    """
    dtype = token_type(tokenizer)
    lengths = []
    numbers: dict[str, tuple[str, Callable[[Any], float], list[np.ndarray]]] = {}
    if label_column is not None:
        numbers["label"] = (label_column, read_label, [])
    if difficulty_column is not None:
        numbers["difficulty"] = (difficulty_column, _read_difficulty, [])
    with (folder / dtype.__name__).open("wb") as tokens:
        first = 0
        for batch in table.batches():
            encoded = encode_sentences(tokenizer, list(_texts(table, batch, columns, first)))
            lengths.append(np.array([len(ids) for ids in encoded], dtype=np.int64))
            tokens.write(np.array([token for ids in encoded for token in ids], dtype=dtype).tobytes())
            for kind, (column, read, found) in numbers.items():
                found.append(_numbers(table, batch[column], kind, column, read, first))
            first += len(batch[columns[0]])
    np.save(folder / "offsets.npy", np.concatenate([[0], *lengths]).cumsum())
    for kind, (_, _, found) in numbers.items():
        np.save(folder / _FILES[kind], np.concatenate(found) if found else np.empty(0))


def open_store(folder: Path, texts: int) -> LabelledStore:
    """Map the files that `write_store` left in ``folder``."""
    labels, difficulty = (
        np.load(folder / name, mmap_mode="r") if (folder / name).exists() else None for name in _FILES.values()
    )
    offsets = np.load(folder / "offsets.npy", mmap_mode="r")
    return LabelledStore(map_tokens(folder), offsets, labels, texts, folder, difficulty)


def read_labels(table: Table, column: str, read_label: Callable[[Any], float]) -> np.ndarray:
    """Return the label of every row of a table, (rows,) float64; a DataError names the row that has none."""
    found = [np.empty(0)]
    first = 0
    for batch in table.batches():
        found.append(_numbers(table, batch[column], "label", column, read_label, first))
        first += len(batch[column])
    return np.concatenate(found)


def token_type(tokenizer: PreTrainedTokenizerFast) -> type[np.unsignedinteger[Any]]:
    """Return the smallest type that holds the ids; a file of ids is called by its name."""
    return np.uint16 if len(tokenizer) <= 2**16 else np.uint32


def map_tokens(folder: Path) -> np.ndarray:
    """Map the file of ids in ``folder``."""
    (name,) = (dtype.__name__ for dtype in (np.uint16, np.uint32) if (folder / dtype.__name__).exists())
    return map_file(folder / name, name)


def _texts(table: Table, batch: Rows, columns: list[str], first: int) -> Iterator[str]:
    """Yield the texts row by row; a missing one is empty."""
    for number, row in enumerate(zip(*(batch[column] for column in columns), strict=True), start=first):
        for column, text in zip(columns, row, strict=True):
            if text is not None and not isinstance(text, str):
                kind = type(text).__name__
                raise DataError(f"dataset.text_columns={column}: row {number} of {table.label} holds {kind}, not text")
            yield text or ""


def _read_difficulty(value: Any) -> int:
    if not str(value).isdigit():
        raise ValueError("a whole number from 0 on is needed")
    return int(value)


def _numbers(
    table: Table, values: list[Any], kind: str, column: str, read: Callable[[Any], float], first: int
) -> np.ndarray:
    found: list[Any] = []
    for position, value in enumerate(values):
        try:
            found.append(read(value))
        except ValueError as error:
            place = f"row {first + position} of {table.label}"
            raise DataError(f"dataset.{kind}_column={column}: {place} has the {kind} {value!r}; {error}") from error
    return np.array(found, dtype=np.float64)
