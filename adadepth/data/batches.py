"""Batches of examples: collators that pad them, samplers of an epoch, and the share of each process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from adadepth.data.randomness import Purpose, random_generator

_MULTIPLE = 8  # lengths that tensor cores and few distinct compiled shapes like

Columns = Mapping[str, tuple[int, type[np.generic]]]  # name -> value of padding, type
Examples = Sequence[Mapping[str, Any]]


def get_sequence_columns(pad_id: int) -> Columns:
    """Return padding value and dtype of each column that examples of token sequences have, by column name."""
    return {
        "input_ids": (pad_id, np.int64),
        "attention_mask": (0, np.int64),
        "token_type_ids": (0, np.int64),
        "special_tokens_mask": (1, np.uint8),
    }


def pad_columns(examples: Examples, width: int, columns: Columns) -> dict[str, Tensor]:
    """Pad the columns of examples to tensors (B, width), and add the attention mask."""
    batch = {}
    for name, (padding, dtype) in columns.items():
        rows = np.full((len(examples), width), padding, dtype)
        for row, example in zip(rows, examples, strict=True):
            row[: len(example["input_ids"])] = 1 if name == "attention_mask" else example[name]
        batch[name] = torch.from_numpy(rows)
    return batch


def collect_numbers(examples: Examples, names: Iterable[str]) -> dict[str, Tensor]:
    """Collect numeric columns of a batch as tensors (B,). Requested columns that the examples lack are skipped."""
    return {name: torch.tensor([example[name] for example in examples]) for name in names if name in examples[0]}


def count_tokens(batch: Mapping[str, Tensor]) -> Tensor:
    """Count the tokens of a batch, or the values of vector inputs; int64, (). Without a mask, nothing is padding."""
    if "targets" in batch:
        return (batch["targets"] >= 0).sum()
    if "attention_mask" in batch:
        return batch["attention_mask"].sum()
    return torch.tensor(batch["input_ids" if "input_ids" in batch else "inputs"].numel())


@dataclass(frozen=True)
class PaddingCollator:
    """Collator that pads sequences to the longest one, rounded up to a multiple of 8, at most ``sequence_length``.

    Attributes:
        pad_id: Id of the padding token.
        sequence_length: Largest width of a batch.
        pad_to_length: Whether every batch is padded to ``sequence_length``, so that compiled runs see one shape.
    """

    pad_id: int
    sequence_length: int
    pad_to_length: bool = False

    def width(self, examples: Examples) -> int:
        """Return the width to which the sequences of a batch are padded."""
        if self.pad_to_length:
            return self.sequence_length
        longest = max(len(example["input_ids"]) for example in examples)
        return min(-(-longest // _MULTIPLE) * _MULTIPLE, self.sequence_length)


class PretrainingCollator(PaddingCollator):
    """Collator of masked sequences for pretraining, which pads them in the way of `PaddingCollator`."""

    def __call__(self, examples: Examples) -> dict[str, Tensor]:
        """Return tensors (B, S): ids, token types, masks and labels as int64, mask kinds and special masks as uint8.

        The batch also has ``sentence_order_label`` and, for numbered examples, ``index``, each (B,) int64.
        """
        columns: Columns = {
            **get_sequence_columns(self.pad_id),
            "labels": (IGNORE, np.int64),
            "mask_kind": (0, np.uint8),
        }
        return {
            **pad_columns(examples, self.width(examples), columns),
            **collect_numbers(examples, ("sentence_order_label", "index")),
        }


IGNORE = -100  # label of a position that is not predicted


class EpochSampler(Sampler[tuple[int, int]]):
    """Sampler that yields every (epoch, example number) once, reshuffled in each epoch, or in order without a seed.

    The epoch is sent together with the number, because a persistent worker would not see a changed attribute.
    """

    def __init__(self, length: int, seed: int | None) -> None:
        self.length = length
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration over the sampler yields."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch = self.epoch
        if self.seed is None:
            return ((epoch, index) for index in range(self.length))
        order = random_generator(self.seed, Purpose.ORDER, epoch, 0).permutation(self.length)
        return ((epoch, int(index)) for index in order)


class ProcessBatches(Sampler[list[Any]]):
    """Sampler of the micro-batches that one distributed process trains on. Each example goes to exactly one process.

    Micro-batch m of process p holds the examples [(m P + p) B, (m P + p + 1) B) of the order. The examples of an update
    are therefore the same for any number P of processes, as long as B P stays the same. All processes have the same
    number of micro-batches. At the end of an epoch some micro-batches hold fewer examples, or none.

    Args:
        order: Sampler that determines the order of the examples.
        batch_size: Maximum number of examples in a micro-batch, B.
        process: Number of this process, p.
        processes: World size, P.
        drop_last: Whether to drop the last examples if they do not fill a micro-batch of every process.
    """

    def __init__(self, order: Sampler[Any], batch_size: int, process: int, processes: int, *, drop_last: bool) -> None:
        self.order = order
        self.share = slice(process * batch_size, (process + 1) * batch_size)
        self.together = batch_size * processes
        self.drop_last = drop_last

    def __len__(self) -> int:
        examples = len(self.order)  # type: ignore[arg-type]
        return examples // self.together if self.drop_last else -(-examples // self.together)

    def __iter__(self) -> Iterator[list[Any]]:
        order = iter(self.order)
        for _ in range(len(self)):
            yield list(islice(order, self.together))[self.share]


def get_lengths(examples: Any) -> np.ndarray | None:
    """Return the number of tokens of each example, (examples,) int64.

    The result is None if the data set cannot compute the lengths cheaply.
    """
    return examples.lengths() if hasattr(examples, "lengths") else None


def order_for_evaluation(examples: Any) -> np.ndarray:
    """Return the example numbers from the longest to the shortest, as evaluation reads them, (examples,) int64.

    Consecutive examples have similar lengths, so that batches need little padding. This also holds for a process that
    takes every n-th example. Examples of unknown or equal length keep the order of the data.
    """
    lengths = get_lengths(examples)
    return np.arange(len(examples)) if lengths is None else order_longest_first(lengths)


def order_longest_first(lengths: np.ndarray) -> np.ndarray:
    """Return the indices that sort examples from the longest to the shortest, (examples,) int64.

    In this order, a batch that does not fit into memory fails at the start. Examples of equal length keep their order.
    """
    return np.argsort(-lengths, kind="stable")
