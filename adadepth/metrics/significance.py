"""Rule of significance: the one test behind every claim that one value is larger than another.

A difference is *significant* if its p-value, corrected for the number of comparisons that a table makes (Holm 1979), is
below `LEVEL`, and the difference is at least as large as a named least relevant difference. The p-value comes from:

- several seeds: Welch's t (Welch 1947), with the degrees of freedom of Welch and Satterthwaite;
- one seed: whole clusters of predictions, such as sequences or texts, are the independent draws (`estimate`), because
  tokens of one text depend on each other. A figure that is no mean, such as a rank correlation, is computed again
  without each of `GROUPS` groups of clusters (`estimate_by_jackknife`). Such a claim is about one trained network, and
  its sentence says "one seed".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05  # probability of a claim if there is no difference
GROUPS = 20  # of clusters, for a figure that is computed again without each of them
FEWEST_CLUSTERS = 10  # for an interval; the variance between fewer clusters says little


def compute_p_value(statistic: float, freedom: float) -> float:
    """Return the two-sided p-value of a t statistic; infinite degrees of freedom mean the normal distribution."""
    from scipy.special import ndtr, stdtr  # imported here: reading a report needs no scipy, and scipy.stats takes 1 s

    tail = stdtr(freedom, -abs(statistic)) if math.isfinite(freedom) else ndtr(-abs(statistic))
    return 2 * float(tail)


def compute_half_width(error: float, freedom: float) -> float:
    """Return half the width of the 95 % interval of a mean with a standard error."""
    from scipy.special import ndtri, stdtrit

    quantile = 1 - LEVEL / 2
    return float(stdtrit(freedom, quantile) if math.isfinite(freedom) else ndtri(quantile)) * error


def correct_p_values(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for the number of comparisons, in the same order (Holm 1979).

    The probability of at least one false claim among all comparisons is then at most the level of each.
    """
    count, largest = len(p_values), 0.0
    corrected = [0.0] * count
    for rank, position in enumerate(sorted(range(count), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (count - rank) * p_values[position]))
        corrected[position] = largest
    return corrected


# ---- several seeds


class SeedMean(NamedTuple):
    """Mean over seeds.

    Attributes:
        mean: The mean.
        error: Its standard error, or None if it was not measured.
        freedom: Degrees of freedom of the error. They are infinite for an error over examples alone.
        seeds: Number of seeds.
    """

    mean: float
    error: float | None
    freedom: float = math.inf
    seeds: int = 1

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % interval, or None without an error."""
        return None if self.error is None else compute_half_width(self.error, self.freedom)


def average_over_seeds(values: Sequence[float], errors: Sequence[float | None] = ()) -> SeedMean:
    """Return the mean over S seeds, with its standard error sqrt((var + mean(e^2)) / S).

    var is the sample variance over seeds, and e the error over the examples of a seed. The error has S - 1 degrees of
    freedom, because var may be small by chance beside e.

    Args:
        values: Value of each seed, (S,).
        errors: Standard error of each value over examples, (S,); None where it was not measured.
    """
    seeds, measured = len(values), [error for error in errors if error is not None]
    within = fmean(error**2 for error in measured) if measured else 0.0
    if seeds == 1:
        return SeedMean(values[0], math.sqrt(within) if measured else None)
    return SeedMean(fmean(values), math.sqrt((variance(values) + within) / seeds), seeds - 1, seeds)


def compare_means(first: SeedMean, second: SeedMean) -> float:
    """Return the p-value of a difference of two means over seeds, by Welch's t.

    t = (m1 - m2) / sqrt(e1^2 + e2^2), with (e1^2 + e2^2)^2 / (e1^4 / f1 + e2^4 / f2) degrees of freedom for errors e
    with f degrees of freedom (Welch 1947, Satterthwaite 1946). The result is 1 if an error was not measured.
    """
    if first.error is None or second.error is None:
        return 1.0
    squared = first.error**2 + second.error**2
    if squared == 0.0:
        return 1.0 if first.mean == second.mean else 0.0
    limited = first.error**4 / first.freedom + second.error**4 / second.freedom
    freedom = squared**2 / limited if limited else math.inf
    return compute_p_value((first.mean - second.mean) / math.sqrt(squared), freedom)


# ---- one seed


def choose_group(number: Any) -> Any:
    """Return the group of the cluster with a number: an integer, or integers in an array or tensor.

    Every twenty clusters fill all groups, each time from another one on. Without this shift, all clusters of a group
    would be alike in data that alternate, for example between two labels.
    """
    return (number + number // GROUPS) % GROUPS


def assign_groups(clusters: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the group of each observation, (M,), from the number of its cluster, (M,)."""
    _, ranks = np.unique(clusters, return_inverse=True)
    groups: NDArray[np.int64] = choose_group(ranks)
    return groups


def estimate_by_jackknife(value: float, left_out: Sequence[float] | NDArray[np.float64]) -> SeedMean:
    """Return a figure of one seed with its error, from the figure without each of G groups of clusters.

    e^2 = (G - 1) / G sum_g (x_g - mean(x))^2 for figures x_g without group g (Tukey 1958), with G - 1 degrees of
    freedom. The error is None for too few groups, or for a figure that does not exist without some group.
    """
    figures = np.asarray(left_out, dtype=np.float64)
    count = len(figures)
    if count < FEWEST_CLUSTERS or not np.isfinite(figures).all():
        return SeedMean(value, None)
    squared = (count - 1) / count * float(((figures - figures.mean()) ** 2).sum())
    return SeedMean(value, math.sqrt(squared), count - 1)


class Sums(NamedTuple):
    """Sums that determine a mean and its interval, for clusters g = 1..G with m_g values that add up to y_g.

    Attributes:
        n: sum m_g.
        total: sum y_g.
        clusters: Number of clusters, G.
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

    @property
    def error(self) -> float:
        """Standard error of the mean, sqrt(G / (G - 1) sum_g (y_g - m_g mean)^2) / n."""
        mean = self.total / self.n
        residuals = max(self.squares - 2 * mean * self.products + mean**2 * self.sizes, 0.0)
        return float(math.sqrt(self.clusters / max(self.clusters - 1, 1) * residuals) / self.n)

    def estimate_mean(self) -> SeedMean:
        """Return the mean with its error over clusters, which is None for too few of them."""
        count, mean = int(self.clusters), float(self.total / self.n)
        return SeedMean(mean, None) if count < FEWEST_CLUSTERS else SeedMean(mean, self.error, count - 1)


class Estimate(NamedTuple):
    """Estimate of a mean, with its number of clusters and, for enough clusters, its 95 % interval."""

    mean: float
    low: float | None
    high: float | None
    clusters: int


def sum_clusters(values: NDArray[np.float64], clusters: NDArray[np.int64]) -> Sums:
    """Return the sums that determine the mean of values, with whole clusters as independent draws.

    Args:
        values: One or more values, (n,).
        clusters: Number of the cluster of each value, (n,). A cluster is, for example, a sentence.
    """
    _, group = np.unique(clusters, return_inverse=True)
    totals, sizes = np.bincount(group, values), np.bincount(group)
    moments = (totals**2).sum(), (totals * sizes).sum(), (sizes**2).sum()
    return Sums(len(values), values.sum(), len(sizes), *moments)


def estimate_clustered_mean(values: NDArray[np.float64], clusters: NDArray[np.int64]) -> Estimate:
    """Return the mean of values and its 95 % interval; see `sum_clusters`."""
    return estimate(sum_clusters(values, clusters))


def estimate(sums: Sums) -> Estimate:
    """Return a mean and its 95 % interval from clustered `Sums`, with at least one value."""
    mean, half_width = (estimated := sums.estimate_mean()).mean, estimated.half_width
    if half_width is None:
        return Estimate(mean, None, None, int(sums.clusters))
    return Estimate(mean, mean - half_width, mean + half_width, int(sums.clusters))
