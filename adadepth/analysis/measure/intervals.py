"""Means over words with intervals that know that the words of a sentence are not independent.

A mean over words of sentences of different lengths is a ratio of two sums over sentences, r = sum y_g / sum m_g; its
variance by linearisation is G / (G - 1) sum (y_g - r m_g)^2 / (sum m_g)^2 (Cochran 1977, section 6.13; the
cluster-robust variance of a regression on a constant), and the interval that of Student's t with G - 1 degrees of
freedom. All of it follows from sums over sentences, which can be added up as they come.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
FEWEST = 10  # clusters: of fewer the variance between them says little


class Sums(NamedTuple):
    """What a mean and its interval follow from, of clusters g with m_g values of sum y_g.

    Attributes:
        n: sum m_g.
        total: sum y_g.
        clusters: G.
        squares: sum y_g^2.
        products: sum y_g m_g.
        sizes: sum m_g^2.
    """

    n: float
    total: float
    clusters: float
    squares: float
    products: float
    sizes: float


class Estimate(NamedTuple):
    """A mean over all words, its interval where there are `FEWEST` clusters or more, and the number of clusters."""

    mean: float
    low: float | None
    high: float | None
    clusters: int


def clustered_mean(values: NDArray[np.float64], clusters: NDArray[np.int64]) -> Estimate:
    """The mean of some values and its 95 % interval, with whole clusters as what was drawn at random.

    Args:
        values: At least one, (n,).
        clusters: Number of the sentence that each belongs to, (n,).
    """
    _, group = np.unique(clusters, return_inverse=True)
    totals, sizes = np.bincount(group, values), np.bincount(group)
    moments = (totals**2).sum(), (totals * sizes).sum(), (sizes**2).sum()
    return estimate(Sums(len(values), values.sum(), len(sizes), *moments))


def estimate(sums: Sums) -> Estimate:
    """The mean of at least one value and its 95 % interval."""
    from scipy.special import stdtrit  # scipy.stats would take a second longer; who only reads waits for neither

    count, mean = int(sums.clusters), float(sums.total / sums.n)
    if count < FEWEST:
        return Estimate(mean, None, None, count)
    residuals = max(sums.squares - 2 * mean * sums.products + mean**2 * sums.sizes, 0.0)
    error = math.sqrt(count / (count - 1) * residuals) / sums.n
    reach = float(stdtrit(count - 1, 0.5 + LEVEL / 2) * error)
    return Estimate(mean, mean - reach, mean + reach, count)
