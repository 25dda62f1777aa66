"""Statistics of adaptive depth: how many different depths a model really uses, and what depth correlates with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adadepth.metrics.significance import assign_groups, estimate_by_jackknife

_Classes = Mapping[str, Mapping[str, Any]]

# Below this number of effective depths a model is called collapsed; 1 is the same depth for every unit.
FEWEST_DEPTHS = 1.5
# From this share of the variance on, the kind of a token alone decides its depth.
DECIDED = 0.9

_KINDS = ("plain", "mask/mask", "mask/random", "mask/original", "question", "context", "ending", "cls", "sep")
# Partitions of the units of a set, each with a test for the names of its classes, which do not overlap.
KIND = "kind"
_PARTITIONS: dict[str, Callable[[str], bool]] = {
    KIND: lambda name: name in _KINDS,
    "label": lambda name: name.startswith("label: ") or name == "unlabelled",
    "correctness": lambda name: name in ("correct", "wrong"),
    "length": lambda name: name.startswith("length "),
    "difficulty": lambda name: name.startswith("difficulty "),
}


def describe_adaptation(classes: _Classes, unit: str, left_out: Sequence[_Classes] = ()) -> dict[str, Any]:
    """Return statistics on whether depth adapts: the effective number of depths, and what depth depends on.

    The exponential of the entropy of a distribution is the number of equally frequent values with the same entropy.

    Args:
        classes: Statistics of each class by name. They must include the class `all` and have `n`, `mean`, `std`,
            `entropy` (nats) and `histogram`.
        unit: The unit that halts, such as `token`.
        left_out: Count, mean and standard deviation of each class without each group of sequences.

    Returns:
        `effective_depths`, over all units; `effective_depths_within`, its mean over the classes weighted by their
        number of units, if there are any; `commonest`, the most frequent depth, and `commonest_share`; `between`, see
        `compute_variance_shares`; and `warning`, one line, if depth does not adapt. The dictionary is empty if nothing
        halts.
    """
    everyone = classes["all"]
    if "entropy" not in everyone or unit not in ("token", "sequence"):
        return {}
    histogram = everyone["histogram"]
    commonest = max(range(len(histogram)), key=histogram.__getitem__)
    adaptation: dict[str, Any] = {
        "effective_depths": math.exp(everyone["entropy"]),
        "commonest": commonest,
        "commonest_share": histogram[commonest] / everyone["n"],
        "between": compute_variance_shares(classes, left_out),
    }
    subsets = [described for name, described in classes.items() if name != "all" and described["n"]]
    if subsets:
        units = sum(subset["n"] for subset in subsets)
        within = sum(subset["n"] * math.exp(subset["entropy"]) for subset in subsets) / units
        adaptation["effective_depths_within"] = within
    if is_collapsed(effective := adaptation["effective_depths"]):
        share = f"{100 * adaptation['commonest_share']:.0f} % of {everyone['n']:,} {unit}s stop at update {commonest}"
        adaptation["warning"] = f"depth does not adapt: {share}; it has {effective:.2f} effective depths"
    elif (between := adaptation["between"].get(KIND, {}).get("share", 0.0)) >= DECIDED:
        adaptation["warning"] = (
            f"depth differs only between kinds of {unit}, which explain {100 * between:.0f} % of its variance"
        )
    return adaptation


def is_collapsed(effective_depths: float) -> bool:
    """Return whether the effective number of depths is close to 1, so that depth does not adapt to the input."""
    return effective_depths < FEWEST_DEPTHS


def is_measurable(correlation: Mapping[str, float]) -> bool:
    """Return whether the interval of a rank correlation excludes anything; with nearly constant depths, it does not."""
    return correlation["low"] > -1 or correlation["high"] < 1


def effective_depths(shares: Sequence[float]) -> float:
    """Return the number of effective depths: the exponential of the entropy of a distribution over depths."""
    return math.exp(-sum(share * math.log(share) for share in shares if share > 0))


def compute_variance_shares(classes: _Classes, left_out: Sequence[_Classes] = ()) -> dict[str, dict[str, float]]:
    """Return, per grouping of tokens or sequences, the share of depth variance that lies between its classes.

    The share is epsilon squared (Kelley 1935), 1 - (SSW / (n - k)) / (SST / (n - 1)), for k classes and n units. Its
    mean is 0 if the classes have no effect, unlike the mean of the plain ratio of sums of squares.

    Args:
        classes: Statistics of each class by name, as in `describe_adaptation`.
        left_out: The same statistics without each group of sequences, for the error of a share.

    Returns:
        `share`, `classes` and `n` for each partition: by `kind` of token, `label`, `correctness`, `length` or
        `difficulty`; and `low`, the lower end of the 95 % interval of the share, if it has one. A partition is absent
        if it has no variance, or fewer than two classes with units.
    """
    shares = {}
    shares_left_out = [compute_variance_shares(part) for part in left_out]
    for partition, is_class in _PARTITIONS.items():
        parts = [described for name, described in classes.items() if is_class(name) and described["n"]]
        n = sum(part["n"] for part in parts)
        if 1 < len(parts) < n and (share := _epsilon_squared(parts, n)) is not None:
            shares[partition] = {"share": share, "classes": len(parts), "n": n}
            without = [part.get(partition, {}).get("share", 0.0) for part in shares_left_out]
            if (half_width := estimate_by_jackknife(share, without).half_width) is not None:
                shares[partition]["low"] = share - half_width
    return shares


def _epsilon_squared(parts: Sequence[Mapping[str, Any]], n: int) -> float | None:
    mean = sum(part["n"] * part["mean"] for part in parts) / n
    within: float = sum(part["n"] * part["std"] ** 2 for part in parts)
    total: float = within + sum(part["n"] * (part["mean"] - mean) ** 2 for part in parts)
    if total <= 1e-12 * n:
        return None
    return max(0.0, 1 - (within / (n - len(parts))) / (total / (n - 1)))


class Correlation(NamedTuple):
    """Spearman's rank correlation, its 95 % interval, and the number of observations behind it.

    The interval is from -1 to 1 if there are too few sequences for one.
    """

    value: float
    low: float
    high: float
    n: int


def spearman_from_table(table: NDArray[np.int64], groups: NDArray[np.int64]) -> Correlation | None:
    """Compute Spearman's rank correlation of row and column from a contingency table of counts.

    All observations of a row (column) are tied and share its mid-rank. This is exact for whole-number depths; for
    losses, the bins limit the precision. The interval comes from the correlations without each group of sequences, so
    that tokens of one sequence may depend on each other.

    Args:
        table: Counts, int64, (rows, columns), with rows and columns in increasing order of their values.
        groups: Counts of each group of whole sequences, int64, (G, rows, columns'); the columns may be coarser.

    Returns:
        The correlation, or None if it does not exist because there are fewer than three observations or a variable is
        constant.
    """
    n = int(table.sum())
    value = _correlate_tables(table[np.newaxis]).item() if n >= 3 else math.nan
    if math.isnan(value):
        return None
    filled = groups[groups.any(axis=(1, 2))]
    return _add_interval(value, _correlate_tables(filled.sum(axis=0) - filled), n)


def spearman(
    first: NDArray[Any], second: NDArray[Any], clusters: NDArray[np.int64] | None = None
) -> Correlation | None:
    """Compute Spearman's correlation of two variables of the same observations, (M,) each.

    The result is None under the conditions of `spearman_from_table`.

    Args:
        first: Values of the first variable, (M,).
        second: Values of the second variable, (M,).
        clusters: Number of the sequence of each observation, (M,). None if every observation is independent.
    """
    rows, columns, pair, counts = _count_pairs(first, second)
    value = _rank_correlations(rows, columns, counts[np.newaxis]).item() if len(first) >= 3 else math.nan
    if math.isnan(value):
        return None
    group = assign_groups(np.arange(len(first)) if clusters is None else clusters)
    groups = np.bincount(group * len(counts) + pair, minlength=(group.max() + 1) * len(counts)).reshape(-1, len(counts))
    return _add_interval(value, _rank_correlations(rows, columns, counts - groups), len(first))


def _add_interval(value: float, left_out: NDArray[np.float64], n: int) -> Correlation:
    half_width = estimate_by_jackknife(value, left_out).half_width
    if half_width is None:
        return Correlation(value, -1.0, 1.0, n)
    return Correlation(value, max(value - half_width, -1.0), min(value + half_width, 1.0), n)


def _correlate_tables(tables: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Spearman's correlation of each contingency table, (T,), from counts, (T, rows, columns)."""
    rows, columns = np.nonzero(tables.any(axis=0))
    # Rows and columns that are empty in every table have no number.
    row_numbers, column_numbers = (np.unique(positions, return_inverse=True)[1] for positions in (rows, columns))
    return _rank_correlations(row_numbers, column_numbers, tables[:, rows, columns])


def rank_correlation(first: NDArray[Any], second: NDArray[Any]) -> float | None:
    """Return Spearman's correlation of two variables, (M,) each.

    The result is None under the conditions of `spearman_from_table`.
    """
    rows, columns, _, counts = _count_pairs(first, second)
    value = _rank_correlations(rows, columns, counts[np.newaxis]).item() if len(first) >= 3 else float("nan")
    return None if np.isnan(value) else value


def _count_pairs(first: NDArray[Any], second: NDArray[Any]) -> tuple[NDArray[np.intp], ...]:
    """Return the ranks of the distinct pairs of values of two variables, with their observations and counts.

    The shapes are (P,), (P,), (M,) and (P,) for P pairs and M observations.
    """
    ranks, other = (np.unique(values, return_inverse=True)[1] for values in (first, second))
    width = other.max(initial=0) + 1
    pairs, pair, counts = np.unique(ranks * width + other, return_inverse=True, return_counts=True)
    return pairs // width, pairs % width, pair, counts


def _rank_correlations(
    rows: NDArray[np.intp], columns: NDArray[np.intp], counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return Spearman's correlation (Pearson's of mid-ranks) of every table, (T,); NaN if a variable is constant.

    Args:
        rows: Row of every pair of values that occurs, (P,), numbered from 0 without gaps.
        columns: Column of every pair, (P,), likewise.
        counts: Number of observations of every pair in every table, (T, P).
    """
    row_ranks, column_ranks = (_center_ranks(_sum_groups(counts, groups))[:, groups] for groups in (rows, columns))
    spread = np.sqrt((counts * row_ranks**2).sum(axis=1) * (counts * column_ranks**2).sum(axis=1))
    products = (counts * row_ranks * column_ranks).sum(axis=1)
    values: NDArray[np.float64] = np.divide(products, spread, out=np.full(len(counts), np.nan), where=spread > 0)
    return values


def _sum_groups(counts: NDArray[np.int64], groups: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the sums of counts, (T, P), over the pairs of each group, (T, G)."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sums: NDArray[np.float64] = np.add.reduceat(counts[:, order], starts, axis=1).astype(np.float64)
    return sums


def _center_ranks(marginals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mid-rank of each value minus the mean rank, (T, G), from the counts of the values, (T, G)."""
    below = np.cumsum(marginals, axis=1) - marginals
    above = marginals.sum(axis=1, keepdims=True) - below - marginals
    ranks: NDArray[np.float64] = (below - above) / 2
    return ranks
