"""A linear probe: a logistic regression on standardised states, whose penalty is chosen on validation examples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

Floats = NDArray[np.floating[Any]]
_Classes = NDArray[np.int64]
Score = Callable[[_Classes, _Classes], float]  # of predictions and classes, (n,) each; more is better

# Inverse strengths of the L2 penalty, the strongest first: of equally good ones the strongest is taken.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
MOST_ITERATIONS = 1000


class Labelled(NamedTuple):
    """States, (n, H), and their classes, (n,)."""

    states: Floats
    classes: _Classes


@dataclass(frozen=True)
class Probe:
    """A fitted probe.

    Attributes:
        model: Standardisation and regression, as scikit-learn has them.
        strength: C, one of `STRENGTHS`.
        validation: Score that it was chosen for.
        converged: Whether the solver arrived.
    """

    model: Pipeline
    strength: float
    validation: float
    converged: bool


def fit_probe(train: Labelled, validation: Labelled, score: Score) -> Probe:
    """The multinomial logistic regression of the training examples that is best on the validation examples."""
    candidates = (_fit(train, validation, score, strength) for strength in STRENGTHS)
    return max(candidates, key=lambda probe: probe.validation)


def _fit(train: Labelled, validation: Labelled, score: Score, strength: float) -> Probe:
    # scikit-learn takes a second to import, and a report that reads probes needs none of it.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=MOST_ITERATIONS))
    with warnings.catch_warnings():  # told by `converged`
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(train.states, train.classes)
    converged = bool(model[-1].n_iter_.max() < MOST_ITERATIONS)
    return Probe(model, strength, score(model.predict(validation.states), validation.classes), converged)


_LEVEL = 0.95
FEWEST_EXAMPLES = 20  # examples of one difficulty: of fewer an accuracy says little

Right = NDArray[np.bool_]


def majority(train: NDArray[np.int64], test: NDArray[np.int64], labels: Sequence[str]) -> dict[str, Any]:
    """The most frequent class of the training examples, and the accuracy of always saying it."""
    most = int(np.bincount(train, minlength=len(labels)).argmax())
    return {"class": labels[most], **accuracy(test == most)}


def accuracy(right: Right) -> dict[str, float]:
    """The share of right predictions, (n,), with Wilson's 95 % interval."""
    from scipy import stats  # a second, which reading a report need not take

    found = stats.binomtest(int(right.sum()), len(right)).proportion_ci(_LEVEL, method="wilson")
    return {"accuracy": float(right.mean()), "low": float(found.low), "high": float(found.high)}


def gain(before: Right, after: Right) -> dict[str, float]:
    """How much more is right than before, (n,) each of the same examples, with the 95 % interval of a paired mean."""
    from scipy import stats

    differences = after.astype(float) - before
    reach = float(stats.norm.ppf(0.5 + _LEVEL / 2) * differences.std() / np.sqrt(len(differences)))
    mean = float(differences.mean())
    return {"gain": mean, "gain_low": mean - reach, "gain_high": mean + reach}


def by_difficulty(right: Right, difficulty: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Accuracy and its interval of the examples of every difficulty, (n,), that enough of them have."""
    values, counts = np.unique(difficulty, return_counts=True)
    return [
        {"difficulty": int(value), "n": int(count), **accuracy(right[difficulty == value])}
        for value, count in zip(values, counts, strict=True)
        if count >= FEWEST_EXAMPLES
    ]
