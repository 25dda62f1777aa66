"""Split of evaluated examples into two halves: the first fits and selects thresholds, the second scores them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SEED = 0  # of every split, so that all models and seeds are scored on the same examples


def select_first_half(owners: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the mask of the examples in the first half of a random split, (M,).

    The split is the same for every seed and model. It is random because data sets may be ordered. For example, every
    second example may be of one class. Its generator is not one of the streams of a run, whose keys contain the seed.
    A stream with a constant key would draw other halves, and stored scores could not be compared with new ones.

    Args:
        owners: Number of the owner of each example, (M,), such as the question of a window or the sequence of a token.
            Examples with the same owner are in the same half.
    """
    unique_owners, ranks = np.unique(owners, return_inverse=True)
    first_owners = np.random.default_rng(_SEED).permutation(len(unique_owners))[: len(unique_owners) // 2]
    return np.isin(ranks, first_owners)
