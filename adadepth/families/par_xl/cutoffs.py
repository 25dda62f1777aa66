"""Where to cut a vocabulary into the clusters of an adaptive softmax, so that a prediction costs least."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from adadepth.errors import ConfigError
from adadepth.families.par_xl.settings import ParXLSettings


def settle_cutoffs(settings: ParXLSettings, word_counts: Callable[[], np.ndarray]) -> ParXLSettings:
    """With the cutoffs of `cutoff_clusters` clusters that are best for a text, if so many are asked for.

    Args:
        settings: Of the model.
        word_counts: How often each id occurs in the training text, (V,).

    Raises:
        ConfigError: If there are more clusters than words.
    """
    if (clusters := settings.cutoff_clusters) is None:
        return settings
    counts = word_counts()
    unused = max((settings.vocab_size or 0) - len(counts), 0)
    counts = np.pad(counts, (0, unused))
    if clusters > len(counts):
        raise ConfigError(f"model.cutoff_clusters={clusters}: the vocabulary has only {len(counts)} words")
    return dataclasses.replace(settings, cutoffs=optimal_cutoffs(counts, clusters), cutoff_clusters=None)


def optimal_cutoffs(counts: np.ndarray, clusters: int) -> list[int]:
    """The first words of all tails with the fewest multiply-accumulates of a known target, all vectors being d wide.

        C = d (c_1 + n)  +  d sum_k P_k V_k
            head            tail k, of V_k words, for the share P_k of the targets that lie in it

    So choose Grave et al. (2017, arXiv 1609.04309, section 4), with a model of time on a GPU for the work. With the
    tails' own widths, which come after that, it would pay to have frequent words in narrow vectors. Exact for any order
    of the words, of all clusters of consecutive ids.

    Args:
        counts: How often each id occurs, (V,), not all zero.
        clusters: n + 1, the head and n tails; at most V.

    Returns:
        The cutoffs c_1 < ... < c_n, each cluster with a word at least.
    """
    words = len(counts)
    assert clusters <= words
    cumulated = np.concatenate([[0.0], np.cumsum(counts, dtype=np.float64)]) / counts.sum()
    costs, begins = np.arange(words + 1.0), []  # in units of d, of a head of the first j words
    for before in range(1, clusters):
        costs, begin = _add_tail(costs, cumulated, before)
        begins.append(begin)
    cutoffs = [words]
    for begin in reversed(begins):
        cutoffs.append(int(begin[cutoffs[-1]]))
    return cutoffs[:0:-1]


def _add_tail(costs: np.ndarray, cumulated: np.ndarray, before: int) -> tuple[np.ndarray, np.ndarray]:
    """The least cost of the first j words with one tail more, and where that then begins, for every j, (V + 1,).

    A later end never begins its tail earlier, since the mixed difference of (F_j - F_i) (j - i) is never positive. So
    halving the ends halves the beginnings, too: V log V steps instead of V^2.

    Args:
        costs: Of the first j words in `before` clusters.
        cumulated: F, the share of targets among the first j words.
        before: The number of clusters so far.
    """
    last = len(costs) - 1
    least, begin = np.full_like(costs, np.inf), np.zeros(len(costs), dtype=np.int64)
    spans = [(before + 1, last, before, last - 1)]  # first and last end, first and last beginning
    while spans:
        low, high, earliest, latest = spans.pop()
        if low > high:
            continue
        end = (low + high) // 2
        starts = np.arange(earliest, min(latest, end - 1) + 1)
        found = costs[starts] + (cumulated[end] - cumulated[starts]) * (end - starts)
        best = int(found.argmin())
        least[end], begin[end] = found[best], starts[best]
        spans += [(low, end - 1, earliest, starts[best]), (end + 1, high, starts[best], latest)]
    return least, begin
