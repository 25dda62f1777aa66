"""Tokenised sentences with a tag a word as flat arrays, written to disk as they come and read through memory maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from adadepth.data.stores.rows import map_tokens, token_type
from adadepth.data.text.tables import Rows, Table
from adadepth.data.text.tokenizer import encode_words
from adadepth.errors import DataError


@dataclass(frozen=True)
class TaggedStore:
    """Token ids of words, and a tag of each.

    Attributes:
        tokens: Ids without special tokens, (tokens,) uint16, or uint32 when the vocabulary needs it.
        words: Where each word begins in ``tokens``, then their number, (words + 1,) int64.
        sentences: Where each sentence begins in ``words``, then their number, (sentences + 1,) int64.
        tags: Number of each word's tag, (words,) int64.
        folder: Where the arrays are mapped from.
    """

    tokens: np.ndarray
    words: np.ndarray
    sentences: np.ndarray
    tags: np.ndarray
    folder: Path

    def __len__(self) -> int:
        return len(self.sentences) - 1

    def pieces(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of a sentence, (tokens,), and where in them each of its words begins, (words,)."""
        first, last = self.sentences[row : row + 2]
        start, end = self.words[[first, last]]
        return self.tokens[start:end], self.words[first:last] - start

    def tags_of(self, row: int) -> np.ndarray:
        """Return the tags of a sentence, (words,)."""
        first, last = self.sentences[row : row + 2]
        return self.tags[first:last]

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each sentence, (sentences,) int64."""
        return np.diff(self.words[self.sentences])

    def __reduce__(self) -> Any:
        """Send a loader worker the folder, not a copy of its content."""
        return open_tagged, (self.folder,)


def write_tagged(
    folder: Path,
    table: Table,
    columns: tuple[str, str],
    tokenizer: PreTrainedTokenizerFast,
    read_tag: Callable[[Any], int],
) -> None:
    """Tokenise a table's sentences into files in ``folder``.

    Args:
        folder: Is there and empty.
        table: Rows with a list of words and a list of tags.
        columns: Of the words and of the tags.
        tokenizer: Of words.
        read_tag: From what the table holds to the tag's number; a ValueError says what is allowed.

    Raises:
        DataError: Words are not text, tags are not allowed, or there are not as many of them; it names the row.
    """
    dtype = token_type(tokenizer)
    pieces: list[int] = []
    words: list[int] = []
    tags: list[int] = []
    with (folder / dtype.__name__).open("wb") as tokens:
        first = 0
        for batch in table.batches():
            rows = list(_rows(table, batch, columns, first))
            tags += _tags(table, rows, columns[1], read_tag, first)
            words += [len(sentence) for sentence, _ in rows]
            for sentence in encode_words(tokenizer, [sentence for sentence, _ in rows]):
                pieces += map(len, sentence)
                tokens.write(np.array([token for word in sentence for token in word], dtype=dtype).tobytes())
            first += len(rows)
    for name, lengths in (("words", pieces), ("sentences", words)):
        np.save(folder / f"{name}.npy", np.array([0, *lengths], dtype=np.int64).cumsum())
    np.save(folder / "tags.npy", np.array(tags, dtype=np.int64))


def open_tagged(folder: Path) -> TaggedStore:
    """Map the files that `write_tagged` left in ``folder``."""
    words, sentences, tags = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("words", "sentences", "tags"))
    return TaggedStore(map_tokens(folder), words, sentences, tags, folder)


def _rows(table: Table, batch: Rows, columns: tuple[str, str], first: int) -> Iterator[tuple[list[str], list[Any]]]:
    """Yield the words and tags of each row."""
    token_column, tag_column = columns
    for number, (words, tags) in enumerate(zip(*map(batch.get, columns), strict=True), start=first):
        row = f"row {number} of {table.label}"
        for key, column, values in (("token", token_column, words), ("tag", tag_column, tags)):
            if not isinstance(values, list):
                raise DataError(f"dataset.{key}_column={column}: {row} holds {type(values).__name__}, not a list")
        if wrong := [word for word in words if not isinstance(word, str)]:
            raise DataError(
                f"dataset.token_column={token_column}: {row} holds the word {wrong[0]!r}, which is not text"
            )
        if len(words) != len(tags):
            raise DataError(f"dataset.tag_column={tag_column}: {row} has {len(words)} words but {len(tags)} tags")
        yield words, tags


def _tags(
    table: Table, rows: list[tuple[list[str], list[Any]]], column: str, read_tag: Callable[[Any], int], first: int
) -> Iterator[int]:
    for number, (_, tags) in enumerate(rows, start=first):
        for tag in tags:
            try:
                yield read_tag(tag)
            except ValueError as error:
                raise DataError(
                    f"dataset.tag_column={column}: row {number} of {table.label} has the tag {tag!r}; {error}"
                ) from error
