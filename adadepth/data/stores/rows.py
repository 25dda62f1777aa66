"""Stores of the tokenised rows of a table: texts with a label, or words with a tag each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from transformers import PreTrainedTokenizerFast

from adadepth.data.stores.mmap_arrays import ArrayWriter, StoredArrays, choose_token_type
from adadepth.data.text.table import ROW_LOCATIONS, DataTable, RowLocation, Rows, require_text
from adadepth.data.text.tokenizer import encode_sentences, encode_words
from adadepth.errors import DataError


@dataclass(frozen=True)
class LabelledStore(StoredArrays):
    """Store of labelled rows: the token ids of one or more texts per row, and the labels.

    Attributes:
        tokens: Ids without special tokens, (tokens,) uint16, or uint32 if the vocabulary needs it.
        offsets: Offset of each text in ``tokens``, row by row, followed by the number of tokens, (rows · texts + 1,)
            int64.
        texts: Number of texts of a row.
        labels: Class number or value of each row, (rows,) float64. For several labels per row, 1 or 0 for each class,
            (rows, C). None for an unlabelled table.
        difficulty: Difficulty of each row, (rows,) float64, or None if the table has no difficulties.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    texts: int
    labels: np.ndarray | None = None
    difficulty: np.ndarray | None = None

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // self.texts

    def row(self, number: int) -> list[np.ndarray]:
        """Return the token ids of each text of a row."""
        bounds = self.offsets[number * self.texts : (number + 1) * self.texts + 1]
        return [self.tokens[start:end] for start, end in pairwise(bounds)]

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each row, summed over its texts, (rows,) int64."""
        return np.diff(self.offsets[:: self.texts])

    def classes(self) -> np.ndarray:
        """Return the class labels of all rows."""
        assert self.labels is not None
        return self.labels


def write_rows(
    folder: Path,
    table: DataTable,
    columns: list[str],
    tokenizer: PreTrainedTokenizerFast,
    label_column: str | None,
    read_label: Callable[[Any], Any],
    difficulty_column: str | None = None,
    label_shape: tuple[int, ...] = (),
) -> None:
    """Tokenise the text columns of a table into files in ``folder``. Labels are written if ``label_column`` is given.

    Raises:
        DataError: If a cell that must be text is not text, or if a label or difficulty is not allowed. The message
            names the row.
    """
    arrays: dict[str, DTypeLike] = {"tokens": choose_token_type(tokenizer), "offsets": np.int64}
    numbers: dict[str, tuple[str, str, Callable[[Any], Any]]] = {}
    if label_column is not None:
        arrays["labels"], numbers["labels"] = (np.float64, label_shape), ("label", label_column, read_label)
    if difficulty_column is not None:
        arrays["difficulty"], numbers["difficulty"] = np.float64, ("difficulty", difficulty_column, _read_difficulty)
    np.save(folder / "texts.npy", len(columns))
    with ArrayWriter(folder, arrays, totals=("offsets",)) as writer:
        for batch in table.read_batches():
            encoded = encode_sentences(tokenizer, list(_read_texts(batch, columns)))
            writer.append(tokens=list(chain.from_iterable(encoded)), offsets=list(map(len, encoded)))
            for name, reading in numbers.items():
                writer.append(**{name: _read_numbers(batch, *reading)})


def read_labels(table: DataTable, column: str, read_label: Callable[[Any], float]) -> np.ndarray:
    """Return the label of every row of a table, (rows,) float64. A row without a label raises a DataError."""
    labels = (_read_numbers(batch, "label", column, read_label) for batch in table.read_batches())
    return np.concatenate([np.empty(0), *labels])


def _read_texts(batch: Rows, columns: list[str]) -> Iterator[str]:
    """Yield the texts of a column or a pair of columns row by row. A missing text is read as an empty one."""
    for location, *texts in zip(batch[ROW_LOCATIONS], *(batch[column] for column in columns), strict=True):
        for column, text in zip(columns, texts, strict=True):
            yield require_text(text, "text_columns", column, location) or ""


def _read_difficulty(value: Any) -> int:
    if not str(value).isdigit():
        raise ValueError("an integer of at least 0 is needed")
    return int(value)


def _read_numbers(batch: Rows, kind: str, column: str, read: Callable[[Any], float]) -> np.ndarray:
    cells = zip(batch[column], batch[ROW_LOCATIONS], strict=True)
    return np.array([_read_cell(value, kind, column, read, location) for value, location in cells], dtype=np.float64)


def _read_cell(value: Any, kind: str, column: str, read: Callable[[Any], Any], location: RowLocation) -> Any:
    """Convert a table cell with the function `read`. A DataError names the row if the cell is not valid."""
    try:
        return read(value)
    except ValueError as error:
        raise DataError(f"dataset.{kind}_column={column}: {location} has the {kind} {value!r}; {error}") from error


@dataclass(frozen=True)
class TaggedStore(StoredArrays):
    """Store of tagged sentences: the token ids of words, and one tag for each word.

    Attributes:
        tokens: Ids without special tokens, (tokens,) uint16, or uint32 if the vocabulary needs it.
        words: Offset of each word in ``tokens``, followed by the number of tokens, (words + 1,) int64.
        sentences: Offset of each sentence in ``words``, followed by the number of words, (sentences + 1,) int64.
        tags: Number of each word's tag, (words,) int64.
    """

    tokens: np.ndarray
    words: np.ndarray
    sentences: np.ndarray
    tags: np.ndarray

    def __len__(self) -> int:
        return len(self.sentences) - 1

    def pieces(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the token ids of a sentence, (tokens,), and the offsets of its words in them, (words,)."""
        first, last = self.sentences[row : row + 2]
        start, end = self.words[[first, last]]
        return self.tokens[start:end], self.words[first:last] - start

    def get_tags(self, row: int) -> np.ndarray:
        """Return the tags of a sentence, (words,)."""
        first, last = self.sentences[row : row + 2]
        return self.tags[first:last]

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sentence, (sentences,) int64."""
        return np.diff(self.words[self.sentences])


def write_tagged(
    folder: Path,
    table: DataTable,
    columns: tuple[str, str],
    tokenizer: PreTrainedTokenizerFast,
    read_tag: Callable[[Any], int],
) -> None:
    """Tokenise a table's sentences into files in ``folder``.

    Args:
        folder: Existing empty folder.
        table: Rows with a list of words and a list of tags.
        columns: Columns of the words and of the tags.
        tokenizer: Tokenizer of words.
        read_tag: Function from a tag in a cell to its number. Its ValueError lists the allowed tags.

    Raises:
        DataError: If a word is not text, if a tag is not allowed, or if a row does not have one tag for each word. The
            message names the row.
    """
    arrays = {"tokens": choose_token_type(tokenizer), "words": np.int64, "sentences": np.int64, "tags": np.int64}
    with ArrayWriter(folder, arrays, totals=("words", "sentences")) as writer:
        for batch in table.read_batches():
            sentences = list(_read_sentences(batch, columns))
            writer.append(tags=list(_read_tags(batch, columns[1], read_tag)))
            words = list(chain.from_iterable(encode_words(tokenizer, sentences)))
            writer.append(tokens=list(chain.from_iterable(words)), words=list(map(len, words)))
            writer.append(sentences=list(map(len, sentences)))


def _read_sentences(batch: Rows, columns: tuple[str, str]) -> Iterator[list[str]]:
    """Yield the words of each row of a table, after a check that the row has one tag for each word."""
    token_column, tag_column = columns
    for row, words, tags in zip(batch[ROW_LOCATIONS], *(batch[column] for column in columns), strict=True):
        for key, column, values in (("token", token_column, words), ("tag", tag_column, tags)):
            if not isinstance(values, list):
                raise DataError(f"dataset.{key}_column={column}: {row} holds {type(values).__name__}, not a list")
        if wrong := [word for word in words if not isinstance(word, str)]:
            raise DataError(
                f"dataset.token_column={token_column}: {row} holds the word {wrong[0]!r}, which is not text"
            )
        if len(words) != len(tags):
            raise DataError(f"dataset.tag_column={tag_column}: {row} has {len(words)} words but {len(tags)} tags")
        yield words


def _read_tags(batch: Rows, column: str, read_tag: Callable[[Any], int]) -> Iterator[int]:
    for location, tags in zip(batch[ROW_LOCATIONS], batch[column], strict=True):
        for index, tag in enumerate(tags):
            yield _read_cell(tag, "tag", column, read_tag, location.locate_word(index))
