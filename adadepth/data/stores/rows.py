"""Tokenised rows of a table as flat arrays, written to disk as they come and read through memory maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.labelled.table import Rows, Table
from adadepth.data.stores.documents import map_file
from adadepth.data.text.tokenizer import encode_sentences
from adadepth.errors import DataError


@dataclass(frozen=True)
class LabelledStore:
    """Token ids of rows with one or two texts, and their labels.

    Attributes:
        tokens: Ids without special tokens, (tokens,) uint16, or uint32 when the vocabulary needs it.
        offsets: Where each text begins in ``tokens``, row by row, then their number, (rows · texts + 1,) int64.
        labels: Class number or value of each row, (rows,) float64; None for an unlabelled table.
        texts: Texts of a row, 1 or 2.
        folder: Where the arrays are mapped from.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray | None
    texts: int
    folder: Path

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
) -> None:
    """Tokenise the text columns of a table into files in ``folder``; without a ``label_column`` it has no labels.

    Raises:
        DataError: A text is not text, or a label is not allowed; the message names the row.
    """
    dtype = token_type(tokenizer)
    lengths, labels = [], []
    with (folder / dtype.__name__).open("wb") as tokens:
        first = 0
        for batch in table.batches():
            encoded = encode_sentences(tokenizer, list(_texts(table, batch, columns, first)))
            lengths.append(np.array([len(ids) for ids in encoded], dtype=np.int64))
            tokens.write(np.array([token for ids in encoded for token in ids], dtype=dtype).tobytes())
            if label_column is not None:
                labels.append(_labels(table, batch[label_column], label_column, read_label, first))
            first += len(batch[columns[0]])
    np.save(folder / "offsets.npy", np.concatenate([[0], *lengths]).cumsum())
    if label_column is not None:
        np.save(folder / "labels.npy", np.concatenate([np.empty(0), *labels]))


def open_store(folder: Path, texts: int) -> LabelledStore:
    """Map the files that `write_store` left in ``folder``."""
    labels = folder / "labels.npy"
    return LabelledStore(
        map_tokens(folder),
        np.load(folder / "offsets.npy", mmap_mode="r"),
        np.load(labels, mmap_mode="r") if labels.exists() else None,
        texts,
        folder,
    )


def read_labels(table: Table, column: str, read_label: Callable[[Any], float]) -> np.ndarray:
    """Return the label of every row of a table, (rows,) float64; a DataError names the row that has none."""
    found = [np.empty(0)]
    first = 0
    for batch in table.batches():
        found.append(_labels(table, batch[column], column, read_label, first))
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


def _labels(table: Table, values: list[Any], column: str, read_label: Callable[[Any], float], first: int) -> np.ndarray:
    found = np.empty(len(values))
    for position, value in enumerate(values):
        try:
            found[position] = read_label(value)
        except ValueError as error:
            place = f"row {first + position} of {table.label}"
            raise DataError(f"dataset.label_column={column}: {place} has the label {value!r}; {error}") from error
    return found
