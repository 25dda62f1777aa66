"""The order of examples: in training a pure function of (seed, epoch), in evaluation and prediction by length."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from adadepth.data.randomness import Purpose, random_generator


class EpochSampler(Sampler[tuple[int, int]]):
    """Yields every (epoch, example number) once, shuffled afresh each epoch, or in order where there is no seed.

    The epoch travels with the number, because a worker that outlives an epoch would not see an attribute change.
    """

    def __init__(self, length: int, seed: int | None) -> None:
        self.length = length
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
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
    """This process's micro-batches of an epoch, of which every example is in exactly one process's.

    Micro-batch m of process p holds the examples [(m P + p) B, (m P + p + 1) B) of the order, so that the examples of
    an update are the same for any number P of processes with B P examples together. All processes have equally many
    micro-batches; at the end of an epoch some hold fewer examples, or none.

    Args:
        order: Of the examples.
        batch_size: B, the most examples of a micro-batch.
        process: p.
        processes: P.
        drop_last: Leave out the last examples where they do not fill a micro-batch of every process.
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


def known_lengths(examples: Any) -> np.ndarray | None:
    """Return the number of tokens of each example, (examples,) int64; None where a data set cannot tell cheaply."""
    return examples.lengths() if hasattr(examples, "lengths") else None


def evaluation_order(examples: Any) -> np.ndarray:
    """Return the numbers of all examples in the order of an evaluation, (examples,) int64.

    Consecutive examples are about equally long, so that batches need little padding, and so are those that several
    processes get when each takes every n-th. Examples of unknown or equal lengths keep the order of the data.
    """
    lengths = known_lengths(examples)
    return np.arange(len(examples)) if lengths is None else longest_first(lengths)


def longest_first(lengths: np.ndarray) -> np.ndarray:
    """Return the numbers of examples of these lengths, (examples,) int64, the longest first.

    What does not fit into memory then fails at once. Equally long ones keep their order.
    """
    return np.argsort(-lengths, kind="stable")
