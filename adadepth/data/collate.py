"""From examples to padded batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.data.masking import IGNORE

_MULTIPLE = 8  # lengths that tensor cores and few distinct compiled shapes like


@dataclass(frozen=True)
class PretrainingCollator:
    """Pads examples to the longest, rounded up to a multiple of 8, at most ``sequence_length``.

    Attributes:
        pad_id: id of the padding token.
        sequence_length: longest batch.
        pad_to_length: pad every batch to ``sequence_length`` (one shape, for compiled runs).
    """

    pad_id: int
    sequence_length: int
    pad_to_length: bool = False

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return tensors (B, S): ids, types, masks and labels as int64, kinds and special marks as uint8."""
        longest = max(len(example["input_ids"]) for example in examples)
        width = self.sequence_length if self.pad_to_length else min(-(-longest // _MULTIPLE) * _MULTIPLE,
                                                                    self.sequence_length)  # fmt: skip
        columns = {
            "input_ids": (self.pad_id, np.int64), "attention_mask": (0, np.int64), "token_type_ids": (0, np.int64),
            "labels": (IGNORE, np.int64), "mask_kind": (0, np.uint8), "special_tokens_mask": (1, np.uint8),
        }  # fmt: skip
        batch = {}
        for name, (padding, dtype) in columns.items():
            rows = np.full((len(examples), width), padding, dtype)
            for row, example in zip(rows, examples, strict=True):
                row[: len(example["input_ids"])] = 1 if name == "attention_mask" else example[name]
            batch[name] = torch.from_numpy(rows)
        batch["sentence_order_label"] = torch.tensor([example["sentence_order_label"] for example in examples])
        return batch
