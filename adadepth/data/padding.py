"""From examples to padded batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.data.pretraining.masking import IGNORE

_MULTIPLE = 8  # lengths that tensor cores and few distinct compiled shapes like

Columns = Mapping[str, tuple[int, type[np.generic]]]  # name -> value of padding, type
Examples = Sequence[Mapping[str, Any]]


def sequence_columns(pad_id: int) -> Columns:
    """Return the columns that every sequence of tokens has."""
    return {
        "input_ids": (pad_id, np.int64), "attention_mask": (0, np.int64), "token_type_ids": (0, np.int64),
        "special_tokens_mask": (1, np.uint8),
    }  # fmt: skip


def padded(examples: Examples, width: int, columns: Columns) -> dict[str, Tensor]:
    """Return the columns of examples as tensors (B, width); the attention mask is made here."""
    batch = {}
    for name, (padding, dtype) in columns.items():
        rows = np.full((len(examples), width), padding, dtype)
        for row, example in zip(rows, examples, strict=True):
            row[: len(example["input_ids"])] = 1 if name == "attention_mask" else example[name]
        batch[name] = torch.from_numpy(rows)
    return batch


def numbers(examples: Examples, names: Iterable[str]) -> dict[str, Tensor]:
    """Return one number an example, (B,), of the named ones that the examples have."""
    return {name: torch.tensor([example[name] for example in examples]) for name in names if name in examples[0]}


@dataclass(frozen=True)
class PaddingCollator:
    """Pads examples to the longest, rounded up to a multiple of 8, at most ``sequence_length``; a subclass has columns.

    Attributes:
        pad_id: Id of the padding token.
        sequence_length: Longest batch.
        pad_to_length: Pad every batch to ``sequence_length`` (one shape, for compiled runs).
    """

    pad_id: int
    sequence_length: int
    pad_to_length: bool = False

    def width(self, examples: Examples) -> int:
        """Return the width of a batch."""
        if self.pad_to_length:
            return self.sequence_length
        longest = max(len(example["input_ids"]) for example in examples)
        return min(-(-longest // _MULTIPLE) * _MULTIPLE, self.sequence_length)


class PretrainingCollator(PaddingCollator):
    """Batches of masked sequences."""

    def __call__(self, examples: Examples) -> dict[str, Tensor]:
        """Return tensors (B, S): ids, types, masks and labels as int64, kinds and special marks as uint8.

        Besides ``sentence_order_label`` and, of examples that are numbered, ``index``, each (B,) int64.
        """
        columns: Columns = {**sequence_columns(self.pad_id), "labels": (IGNORE, np.int64), "mask_kind": (0, np.uint8)}
        return {
            **padded(examples, self.width(examples), columns),
            **numbers(examples, ("sentence_order_label", "index")),
        }
