"""Labelled examples, which are sequences of tokens or vectors, and their collators."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from adadepth.data.batches import IGNORE, Examples, PaddingCollator, collect_numbers, get_sequence_columns, pad_columns
from adadepth.data.text.special_tokens import Layout

NO_DIFFICULTY = -1  # difficulty of a unit for which none is defined


# Columns of some data sets with a value a token: name -> value of padding, type.
_TOKEN_COLUMNS: dict[str, tuple[int, type[np.generic]]] = {
    "labels": (IGNORE, np.int64),
    "position_ids": (0, np.int64),
    "difficulties": (NO_DIFFICULTY, np.int64),
}


class SequenceCollator(PaddingCollator):
    """Collator of token sequences that have one label each, or one label for each token."""

    def __call__(self, examples: Examples) -> dict[str, Tensor]:
        """Return ids, token types and attention mask (B, S) int64, special-token mask (B, S) uint8, and other columns.

        The other columns are those of `collect_example_columns`. If every token has a label, ``labels`` are (B, S)
        int64. If every token has its own position or difficulty, ``position_ids`` and ``difficulty`` are (B, S) int64,
        too.
        """
        width = self.width(examples)
        extra = {name: column for name, column in _TOKEN_COLUMNS.items() if name in examples[0]}
        batch = pad_columns(examples, width, {**get_sequence_columns(self.pad_id), **extra})
        if "difficulties" in batch:
            batch["difficulty"] = batch.pop("difficulties")
        return {**batch, **collect_example_columns(examples)}


def collate_vectors(examples: Examples) -> dict[str, Tensor]:
    """Return a batch of vectors: ``inputs`` (B, S) float32 and the columns of `collect_example_columns`."""
    inputs = np.stack([example["inputs"] for example in examples]).astype(np.float32)
    return {"inputs": torch.from_numpy(inputs), **collect_example_columns(examples)}


def collect_example_columns(examples: Examples) -> dict[str, Tensor]:
    """Return the columns with one number for each example, (B,): ``index`` and, if present, ``labels`` and others.

    ``labels`` are int64 for classes and float32 for values. ``difficulty`` is int64.
    """
    columns = collect_numbers(examples, ("index", "label", "difficulty", "feature_row", "text_loops"))
    return {"labels" if name == "label" else name: values for name, values in columns.items()}


_Store = TypeVar("_Store")


class StoredExamples(Dataset[dict[str, Any]], Generic[_Store]):
    """Base class of data sets that read their examples from selected rows of a tokenised store on disk.

    Args:
        store: Tokens and labels of all rows.
        rows: Numbers of the selected rows in the store, (examples,).
        layout: Special tokens and maximum length of a sequence.
    """

    def __init__(self, store: _Store, rows: np.ndarray, layout: Layout) -> None:
        self.store = store
        self.rows = rows
        self.layout = layout

    def __len__(self) -> int:
        return len(self.rows)


class TaggedExamples(Protocol):
    """Data set of token sequences with a tag for each word, or with labels at some tokens."""

    def gold(self, index: int) -> list[int]:
        """Return the tags of all words of an example, including truncated words."""

    def find_first_pieces(self, index: int) -> np.ndarray:
        """Return the positions of each word's first token in a sequence, (words,), without truncated words."""

    def row_number(self, index: int) -> int:
        """Return the row of an example in the source data."""
