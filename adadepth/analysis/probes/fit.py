"""A linear probe: a logistic regression on standardised states, whose penalty is chosen on validation examples."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

Floats = NDArray[np.floating[Any]]
Classes = NDArray[np.int64]
Score = Callable[[Classes, Classes], float]  # of predictions and classes, (n,) each; more is better

# Inverse strengths of the L2 penalty, the strongest first: of equally good ones the strongest is taken.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
MOST_ITERATIONS = 1000


class Labelled(NamedTuple):
    """States, (n, H), and their classes, (n,)."""

    states: Floats
    classes: Classes


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
    model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=MOST_ITERATIONS))
    with warnings.catch_warnings():  # told by `converged`
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(train.states, train.classes)
    converged = bool(model[-1].n_iter_.max() < MOST_ITERATIONS)
    return Probe(model, strength, score(model.predict(validation.states), validation.classes), converged)
