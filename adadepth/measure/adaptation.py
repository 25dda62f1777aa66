"""How much depth varies, and what it follows: adaptation, rank correlation, intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_Classes = Mapping[str, Mapping[str, Any]]

# Depths that are used as much as so many equally frequent ones: 1 is one depth for everybody.
FEWEST_DEPTHS = 1.5
# From this share of the variance on, what a token is decides its depth, and the token itself does not.
DECIDED = 0.9

_KINDS = ("plain", "mask/mask", "mask/random", "mask/original", "question", "context", "ending", "cls", "sep")
# Ways to part the units of a set, and the classes that are their parts: no unit is in two of one way.
KIND = "kind"
_WAYS: dict[str, Callable[[str], bool]] = {
    KIND: lambda name: name in _KINDS,
    "label": lambda name: name.startswith("label: ") or name == "unlabelled",
    "correctness": lambda name: name in ("correct", "wrong"),
    "length": lambda name: name.startswith("length "),
    "difficulty": lambda name: name.startswith("difficulty "),
}


def describe_adaptation(classes: _Classes, unit: str) -> dict[str, Any]:
    """How many depths are really used, and by what they differ.

    The exponential of a distribution's entropy is the number of equally frequent values that are as varied.

    Args:
        classes: Described classes by name, `all` among them, with `n`, `mean`, `std`, `entropy` (nats), `histogram`.
        unit: What halts.

    Returns:
        `effective_depths` of all units; `effective_depths_within`: the mean over classes, weighted by their units,
        where there are any; `commonest`, the depth of most units, and `commonest_share`; `between`, see
        `shares_between`; and `warning`, one line, where depth does not adapt. Empty where nothing halts.
    """
    everyone = classes["all"]
    if "entropy" not in everyone or unit not in ("token", "sequence"):
        return {}
    histogram = everyone["histogram"]
    commonest = max(range(len(histogram)), key=histogram.__getitem__)
    found: dict[str, Any] = {
        "effective_depths": math.exp(everyone["entropy"]),
        "commonest": commonest,
        "commonest_share": histogram[commonest] / everyone["n"],
        "between": shares_between(classes),
    }
    others = [described for name, described in classes.items() if name != "all" and described["n"]]
    if others:
        units = sum(described["n"] for described in others)
        found["effective_depths_within"] = sum(d["n"] * math.exp(d["entropy"]) for d in others) / units
    if is_collapsed(found["effective_depths"]):
        shown = f"{100 * found['commonest_share']:.0f} % of {everyone['n']:,} {unit}s stop at update {commonest}"
        found["warning"] = f"depth does not adapt: {shown}; in effect it has {found['effective_depths']:.2f} depths"
    elif (share := found["between"].get(KIND, {}).get("share", 0.0)) >= DECIDED:
        found["warning"] = f"depth differs between kinds of {unit} only: {100 * share:.0f} % of its variance"
    return found


def is_collapsed(effective_depths: float) -> bool:
    """Whether so few depths are used that depth does not adapt."""
    return effective_depths < FEWEST_DEPTHS


def effective_depths(shares: Sequence[float]) -> float:
    """The exponential of the entropy of a distribution."""
    return math.exp(-sum(share * math.log(share) for share in shares if share > 0))


def shares_between(classes: _Classes) -> dict[str, dict[str, float]]:
    """What share of the variance of depth lies between the classes of each way to part the units.

    Epsilon squared (Kelley 1935): 1 - (SSW / (n - k)) / (SST / (n - 1)) of k classes and n units, which is 0 on average
    where classes mean nothing, as the plain ratio of sums of squares is not.

    Returns:
        By way (`kind` of token, `label`, `correctness`, `length`, `difficulty`): `share`, `classes` and `n`. A way with
        fewer than two classes that have units, or without any variance, is absent.
    """
    found = {}
    for way, belongs in _WAYS.items():
        parts = [described for name, described in classes.items() if belongs(name) and described["n"]]
        n = sum(part["n"] for part in parts)
        if 1 < len(parts) < n and (share := _share_between(parts, n)) is not None:
            found[way] = {"share": share, "classes": len(parts), "n": n}
    return found


def _share_between(parts: Sequence[Mapping[str, Any]], n: int) -> float | None:
    mean = sum(part["n"] * part["mean"] for part in parts) / n
    within: float = sum(part["n"] * part["std"] ** 2 for part in parts)
    total: float = within + sum(part["n"] * (part["mean"] - mean) ** 2 for part in parts)
    if total <= 1e-12 * n:
        return None
    return max(0.0, 1 - (within / (n - len(parts))) / (total / (n - 1)))


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
    return _correlate(*_counted_pairs(first, second), resamples, seed)


def rank_correlation(first: NDArray[Any], second: NDArray[Any]) -> float | None:
    """Spearman's correlation of two variables, (M,) each, without an interval; None as in `spearman_from_table`."""
    rows, columns, counts = _counted_pairs(first, second)
    value = _rank_correlation(rows, columns, counts) if len(first) >= 3 else float("nan")
    return None if np.isnan(value) else value


def _counted_pairs(
    first: NDArray[Any], second: NDArray[Any]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64]]:
    """The pairs of values that occur, as ranks among the values of each variable, and how often."""
    pairs = np.stack([np.unique(values, return_inverse=True)[1] for values in (first, second)])
    (rows, columns), counts = np.unique(pairs, axis=1, return_counts=True)
    return rows, columns, counts


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


_LEVEL = 0.95
FEWEST_CLUSTERS = 10  # clusters: of fewer the variance between them says little


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
    """A mean over all words, its interval where there are `FEWEST_CLUSTERS` or more, and the number of clusters."""

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
    if count < FEWEST_CLUSTERS:
        return Estimate(mean, None, None, count)
    residuals = max(sums.squares - 2 * mean * sums.products + mean**2 * sums.sizes, 0.0)
    error = math.sqrt(count / (count - 1) * residuals) / sums.n
    reach = float(stdtrit(count - 1, 0.5 + _LEVEL / 2) * error)
    return Estimate(mean, mean - reach, mean + reach, count)
