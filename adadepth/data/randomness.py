"""Counter-based random numbers. Every draw is a pure function of its purpose, epoch and index."""

from enum import IntEnum

import numpy as np

EVALUATION_SEED = 0  # for every seed of a run, so that all runs are measured on the same examples
FIXED_EPOCH = -1  # the epoch of examples that never change: those of the evaluation


class Purpose(IntEnum):
    """Purposes of random numbers, each with its own random stream. The purposes of other packages start at 1000."""

    PACKING = 0
    EXAMPLE = 1
    ORDER = 2
    BUFFER = 3
    SHIFT = 4
    PARITY = 5
    HELD_OUT = 6
    MAZE = 7
    HOPS = 8
    ADDITION = 9
    PUZZLES = 11
    SYMMETRY = 12
    EXPLORATION = 13
    TRACE = 14
    MANO = 15
    RECORDS = 16
    RESUMING = 17
    LENGTHS = 18


def split_item(item: int | tuple[int, int]) -> tuple[int, int]:
    """Return the epoch and the example number that a sampler item contains.

    A number without an epoch belongs to the fixed epoch of evaluation.
    """
    return item if isinstance(item, tuple) else (FIXED_EPOCH, item)


def random_generator(seed: int, purpose: int, epoch: int, index: int) -> np.random.Generator:
    """Return the random generator for one seed, purpose, epoch and index, e.g. for one example in one epoch.

    Philox is a block cipher over a 256-bit counter (Salmon et al. 2011). Index and epoch fill the upper words of the
    counter, and the draws increment the lowest word, so that streams never overlap. Negative epochs are allowed.
    """
    counter = np.array([word % 2**64 for word in (0, index, epoch, 0)], dtype=np.uint64)
    key = np.array([seed % 2**64, purpose], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))
