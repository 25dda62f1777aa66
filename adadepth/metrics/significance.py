"""Rule of significance: the one test behind every claim that one value is larger than another.

A difference is *significant* if its p-value, corrected for the number of comparisons that a table makes (Holm 1979), is
below `LEVEL`, and the difference is at least as large as a named least relevant difference. The p-value comes from:

- several seeds: Welch's t (Welch 1947), with the degrees of freedom of Welch and Satterthwaite;
- one seed: whole clusters of predictions, such as sequences or texts, are the independent draws (`sum_clusters`),
  because tokens of one text depend on each other. A figure that is no mean, such as a rank correlation, is computed
  again without each of `GROUPS` groups of clusters (`estimate_by_jackknife`). Such a claim is about one trained
  network, and its sentence says "one seed".
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


def compute_half_width(error: float, freedom: float, level: float = LEVEL) -> float:
    """Return half the width of the interval of a mean with a standard error, of 95 % at the default level."""
    from scipy.special import ndtri, stdtrit

    quantile = 1 - level / 2
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

    @property
    def interval(self) -> tuple[float, float] | tuple[None, None]:
        """Bounds of the 95 % interval, or None twice without an error."""
        half_width = self.half_width
        return (None, None) if half_width is None else (self.mean - half_width, self.mean + half_width)


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


def subtract_means(first: SeedMean, second: SeedMean) -> SeedMean:
    """Return the difference of two means over seeds, m1 - m2, with its error sqrt(e1^2 + e2^2).

    It has (e1^2 + e2^2)^2 / (e1^4 / f1 + e2^4 / f2) degrees of freedom for errors e with f degrees of freedom (Welch
    1947, Satterthwaite 1946). The error is None if one of the two was not measured.
    """
    difference, seeds = first.mean - second.mean, min(first.seeds, second.seeds)
    if first.error is None or second.error is None:
        return SeedMean(difference, None, seeds=seeds)
    squared = first.error**2 + second.error**2
    limited = first.error**4 / first.freedom + second.error**4 / second.freedom
    return SeedMean(difference, math.sqrt(squared), squared**2 / limited if limited else math.inf, seeds)


def compare_means(first: SeedMean, second: SeedMean) -> float:
    """Return the p-value of a difference of two means over seeds, by Welch's t = (m1 - m2) / sqrt(e1^2 + e2^2).

    The result is 1 if an error was not measured; see `subtract_means`.
    """
    difference = subtract_means(first, second)
    if difference.error is None:
        return 1.0
    if difference.error == 0.0:
        return 1.0 if difference.mean == 0.0 else 0.0
    return compute_p_value(difference.mean / difference.error, difference.freedom)


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
    def effective_clusters(self) -> float:
        """Number of clusters of equal size that would weigh as much, G' = n^2 / sum_g m_g^2 (Kish 1965)."""
        return float(self.n**2 / self.sizes)

    @property
    def error(self) -> float:
        """Standard error of the mean, c sqrt(sum_g (y_g - m_g mean)^2) / n, which is NaN for one cluster.

        c^2 = (G - 1) / G (G' / (G' - 1))^2, which is G / (G - 1) for clusters of equal size. Residuals of large
        clusters are too small, because these clusters move the mean; the jackknife divides each by 1 - m_g / n
        (Mancl and DeRouen 2001), and c by its weighted mean.
        """
        mean, count, effective = self.total / self.n, self.clusters, self.effective_clusters
        if count < 2:
            return math.nan
        residuals = max(self.squares - 2 * mean * self.products + mean**2 * self.sizes, 0.0)
        correction = math.sqrt((count - 1) / count) * effective / (effective - 1)
        return float(correction * math.sqrt(residuals) / self.n)

    def estimate_mean(self) -> SeedMean:
        """Return the mean with its error over clusters and G' - 1 degrees of freedom.

        The error is None for fewer than `FEWEST_CLUSTERS` clusters, or if one cluster has most of the values.
        """
        mean = float(self.total / self.n)
        if int(self.clusters) < FEWEST_CLUSTERS or self.effective_clusters < 2:
            return SeedMean(mean, None)
        return SeedMean(mean, self.error, self.effective_clusters - 1)


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
