"""What probes of all updates are worth on a set: accuracies, what each update adds, and the majority class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
FEWEST = 20  # examples of one difficulty: of fewer an accuracy says little

Right = NDArray[np.bool_]


def majority(train: NDArray[np.int64], test: NDArray[np.int64], labels: Sequence[str]) -> dict[str, Any]:
    """The most frequent class of the training examples, and the accuracy of always saying it."""
    most = int(np.bincount(train, minlength=len(labels)).argmax())
    return {"class": labels[most], **accuracy(test == most)}


def accuracy(right: Right) -> dict[str, float]:
    """The share of right predictions, (n,), with Wilson's 95 % interval."""
    from scipy import stats  # a second, which reading a report need not take

    found = stats.binomtest(int(right.sum()), len(right)).proportion_ci(LEVEL, method="wilson")
    return {"accuracy": float(right.mean()), "low": float(found.low), "high": float(found.high)}


def gain(before: Right, after: Right) -> dict[str, float]:
    """How much more is right than before, (n,) each of the same examples, with the 95 % interval of a paired mean."""
    from scipy import stats

    differences = after.astype(float) - before
    reach = float(stats.norm.ppf(0.5 + LEVEL / 2) * differences.std() / np.sqrt(len(differences)))
    mean = float(differences.mean())
    return {"gain": mean, "gain_low": mean - reach, "gain_high": mean + reach}


def by_difficulty(right: Right, difficulty: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Accuracy and its interval of the examples of every difficulty, (n,), that enough of them have."""
    values, counts = np.unique(difficulty, return_counts=True)
    return [
        {"difficulty": int(value), "n": int(count), **accuracy(right[difficulty == value])}
        for value, count in zip(values, counts, strict=True)
        if count >= FEWEST
    ]
