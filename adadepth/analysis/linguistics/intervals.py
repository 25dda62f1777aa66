"""Means over words with intervals that know that the words of a sentence are not independent."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
FEWEST = 10  # clusters: of fewer the variance between them says little


class Estimate(NamedTuple):
    """A mean over all words, its interval where there are `FEWEST` clusters or more, and the number of clusters."""

    mean: float
    low: float | None
    high: float | None
    clusters: int


def clustered_mean(values: NDArray[np.float64], clusters: NDArray[np.int64]) -> Estimate:
    """The mean of some values and its 95 % interval, with whole clusters as what was drawn at random.

    A mean over words of sentences of different lengths is a ratio of two sums over sentences, r = sum y_g / sum m_g;
    its variance by linearisation is G / (G - 1) sum (y_g - r m_g)^2 / (sum m_g)^2 (Cochran 1977, section 6.13; the
    cluster-robust variance of a regression on a constant), and the interval that of Student's t with G - 1 degrees of
    freedom.

    Args:
        values: At least one, (n,).
        clusters: Number of the sentence that each belongs to, (n,).
    """
    from scipy.special import stdtrit  # scipy.stats would take a second longer; who only reads waits for neither

    _, group = np.unique(clusters, return_inverse=True)
    totals, sizes = np.bincount(group, values), np.bincount(group)
    count, mean = len(sizes), float(values.mean())
    if count < FEWEST:
        return Estimate(mean, None, None, count)
    residuals = totals - mean * sizes
    error = np.sqrt(count / (count - 1) * (residuals**2).sum()) / len(values)
    reach = float(stdtrit(count - 1, 0.5 + LEVEL / 2) * error)
    return Estimate(mean, mean - reach, mean + reach, count)
