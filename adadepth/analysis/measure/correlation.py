"""Spearman's rank correlation: from a table of counts, so that no observation needs to be kept, or from values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Correlation(NamedTuple):
    """A rank correlation, its 95 % interval, and the number of observations behind it."""

    value: float
    low: float
    high: float
    n: int


def spearman_from_table(table: NDArray[np.int64], resamples: int = 400, seed: int = 0) -> Correlation | None:
    """Correlate the row and the column of the observations that a contingency table counts.

    Everything in one row (column) is tied and shares its mid-rank: exact for whole-number depths, and for losses as
    fine as their bins. The interval is the percentile bootstrap: `resamples` tables drawn from the multinomial
    distribution of the observed one. It takes observations as independent, so it is a lower bound for tokens that
    share sentences.

    Args:
        table: Counts, int64, (rows, columns), both in increasing order of the value they stand for.
        resamples: Number of bootstrap tables.
        seed: Of the bootstrap; equal tables give equal intervals.

    Returns:
        The correlation, or None where it does not exist: fewer than three observations or a constant variable.
    """
    rows, columns = np.nonzero(table)
    return _correlate(rows, columns, table[rows, columns], resamples, seed)


def spearman(first: NDArray[Any], second: NDArray[Any], resamples: int = 400, seed: int = 0) -> Correlation | None:
    """Correlate two variables of the same observations, (M,) each; interval and None as in `spearman_from_table`."""
    pairs = np.stack([np.unique(values, return_inverse=True)[1] for values in (first, second)])
    (rows, columns), counts = np.unique(pairs, axis=1, return_counts=True)
    return _correlate(rows, columns, counts, resamples, seed)


def _correlate(
    rows: NDArray[np.intp], columns: NDArray[np.intp], counts: NDArray[np.int64], resamples: int, seed: int
) -> Correlation | None:
    n = int(counts.sum())
    value = _rank_correlation(rows, columns, counts) if n >= 3 else float("nan")
    if np.isnan(value):
        return None
    generator = np.random.default_rng(seed)
    # Rows and columns that are empty in the observed table stay empty in every resampled one.
    rows, columns = (np.unique(positions, return_inverse=True)[1] for positions in (rows, columns))
    drawn = [_rank_correlation(rows, columns, generator.multinomial(n, counts / n)) for _ in range(resamples)]
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return Correlation(value, float(low), float(high), n)


def _rank_correlation(rows: NDArray[np.intp], columns: NDArray[np.intp], counts: NDArray[np.int64]) -> float:
    """Pearson's correlation of the mid-ranks of cells (row, column) that hold `counts` observations each."""
    row_ranks = _centred_ranks(np.bincount(rows, counts.astype(float)))[rows]
    column_ranks = _centred_ranks(np.bincount(columns, counts.astype(float)))[columns]
    spread = np.sqrt((counts * row_ranks**2).sum() * (counts * column_ranks**2).sum())
    return float((counts * row_ranks * column_ranks).sum() / spread) if spread > 0 else float("nan")


def _centred_ranks(marginal: NDArray[Any]) -> NDArray[Any]:
    """Mid-rank of each value minus the mean rank: half the observations below it minus half of those above it."""
    below = np.cumsum(marginal) - marginal
    above = marginal.sum() - below - marginal
    ranks: NDArray[Any] = (below - above) / 2
    return ranks
