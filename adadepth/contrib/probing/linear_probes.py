"""Linear probes: logistic regressions on standardised states, with the penalty chosen on validation examples."""

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
Score = Callable[[_Classes, _Classes], float]  # from predictions and classes, (n,) each; more is better

# Inverse strengths of the L2 penalty, the strongest penalty first, which wins a tie.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
MOST_ITERATIONS = 1000


class Labelled(NamedTuple):
    """Labelled examples of a probe: hidden states, (n, H), and the class of each, (n,)."""

    states: Floats
    classes: _Classes


@dataclass(frozen=True)
class Probe:
    """Linear probe that was fitted to hidden states.

    Attributes:
        model: Standardisation and logistic regression, a pipeline of scikit-learn.
        strength: Inverse strength C of the regularisation, one of `STRENGTHS`.
        validation: Score on the validation examples.
        converged: Whether the solver converged.
    """

    model: Pipeline
    strength: float
    validation: float
    converged: bool


def fit_probe(train: Labelled, validation: Labelled, score: Score) -> Probe:
    """Fit logistic regressions to the training examples, and return the one that is best on the validation examples."""
    candidates = (_fit(train, validation, score, strength) for strength in STRENGTHS)
    return max(candidates, key=lambda probe: probe.validation)


def _fit(train: Labelled, validation: Labelled, score: Score, strength: float) -> Probe:
    # Imported here: scikit-learn takes a second, and reading a report does not need it.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=MOST_ITERATIONS))
    with warnings.catch_warnings():  # `converged` reports it
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(train.states, train.classes)
    converged = bool(model[-1].n_iter_.max() < MOST_ITERATIONS)
    return Probe(model, strength, score(model.predict(validation.states), validation.classes), converged)


_LEVEL = 0.95
FEWEST_EXAMPLES = 20  # of one difficulty; the accuracy of fewer says little

Right = NDArray[np.bool_]


def majority(train: NDArray[np.int64], test: NDArray[np.int64], labels: Sequence[str]) -> dict[str, Any]:
    """Return the most frequent class of the training examples, and the test accuracy of always predicting it."""
    most = int(np.bincount(train, minlength=len(labels)).argmax())
    return {"class": labels[most], **accuracy(test == most)}


def accuracy(right: Right) -> dict[str, float]:
    """Return the share of right predictions, from their rightness (n,), with its Wilson 95 % interval."""
    from scipy import stats  # imported here: it takes a second, and reading a report does not need it

    interval = stats.binomtest(int(right.sum()), len(right)).proportion_ci(_LEVEL, method="wilson")
    return {"accuracy": float(right.mean()), "low": float(interval.low), "high": float(interval.high)}


def gain(before: Right, after: Right) -> dict[str, float]:
    """Return the gain in accuracy between two probes on the same examples, with the 95 % interval of a paired mean."""
    from scipy import stats

    differences = after.astype(float) - before
    half_width = float(stats.norm.ppf(0.5 + _LEVEL / 2) * differences.std() / np.sqrt(len(differences)))
    mean = float(differences.mean())
    return {"gain": mean, "gain_low": mean - half_width, "gain_high": mean + half_width}


def by_difficulty(right: Right, difficulty: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return a probe's accuracy and its interval for every difficulty that has at least `FEWEST_EXAMPLES` examples."""
    values, counts = np.unique(difficulty, return_counts=True)
    return [
        {"difficulty": int(value), "n": int(count), **accuracy(right[difficulty == value])}
        for value, count in zip(values, counts, strict=True)
        if count >= FEWEST_EXAMPLES
    ]
