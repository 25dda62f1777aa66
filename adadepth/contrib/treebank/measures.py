"""Linguistic classes of words, and the depth statistics of every class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adadepth.metrics.significance import sum_clusters

# Description of each kind of classes, in the order of tables.
CLASS_KINDS: dict[str, str] = {
    "upos": "part of speech",
    "deprel": "relation to the head, subtypes merged into the main relation",
    "tree_depth": "depth in the tree: number of arcs from the root",
    "frequency": "frequency: occurrences per million words",
    "deprel_full": "relation with its subtype",
}
_UNORDERED_KINDS = ("upos", "deprel", "deprel_full")  # kinds whose classes are sorted by depth
FILE_ONLY = ("deprel_full",)  # kinds that are written to files but not shown
DEEPEST = 7  # words this deep or deeper are one class
_BANDS = ((10_000, "10,000 or more"), (1_000, "1,000 to 10,000"), (100, "100 to 1,000"), (10, "10 to 100"))
_RAREST = "below 10"


def classify_words(
    upos: Sequence[str], deprel: Sequence[str], depth: Iterable[int], per_million: Iterable[float]
) -> dict[str, list[str]]:
    """Return the class of each word under every classification, such as part of speech or relation."""
    return {
        "upos": list(upos),
        "deprel": [relation.partition(":")[0] for relation in deprel],
        "tree_depth": [str(arcs) if arcs < DEEPEST else f"{DEEPEST} or more" for arcs in depth],
        "frequency": [_choose_frequency_band(frequency) for frequency in per_million],
        "deprel_full": list(deprel),
    }


def _list_ordered_classes(kind: str) -> list[str]:
    """Return the classes of a classification in their natural order, or an empty list if it has none."""
    if kind == "tree_depth":
        return [*map(str, range(DEEPEST)), f"{DEEPEST} or more"]
    return [*(name for _, name in _BANDS), _RAREST] if kind == "frequency" else []


def _choose_frequency_band(frequency: float) -> str:
    return next((name for least, name in _BANDS if frequency >= least), _RAREST)


@dataclass(frozen=True)
class WordPieces:
    """Depths of subword tokens, with the word that each belongs to.

    Attributes:
        word: Index of the word of each piece, (K,) int64.
        first: Whether a piece is the first of its word, (K,) bool.
        updates: Depth of each piece in updates, (K,) float64.
        cosines: Cosine similarity of the states of first pieces before and after each iteration, (first pieces, L)
            float32. It is NaN for iterations that were not run, and None if the states are not available.
    """

    word: NDArray[np.int64]
    first: NDArray[np.bool_]
    updates: NDArray[np.float64]
    cosines: NDArray[np.float32] | None


def concatenate_pieces(parts: Sequence[WordPieces]) -> WordPieces:
    """Concatenate subword depths from several batches or processes."""
    cosines = [part.cosines for part in parts if part.cosines is not None]
    return WordPieces(
        np.concatenate([part.word for part in parts]),
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.updates for part in parts]),
        np.concatenate(cosines) if cosines else None,
    )


def describe_words(
    pieces: WordPieces, classes: Mapping[str, Sequence[str]], sentences: NDArray[np.int64], max_updates: int
) -> dict[str, Any]:
    """Return depth statistics by class as JSON values, for first subword tokens and for means over a word's tokens.

    Args:
        pieces: Pieces of the set. Words without a first piece are not counted.
        classes: Class of every word of the treebank, for each kind of class.
        sentences: Index of the sentence of each word of the treebank, (words,) int64.
        max_updates: Maximum number of updates L.

    Returns:
        `all`, the row for all words, and `kinds`, the rows of each kind; see `_summarise_class`. The rows of
        `_UNORDERED_KINDS` are sorted by decreasing depth.
    """
    order = np.argsort(pieces.word[pieces.first], kind="stable")
    words = pieces.word[pieces.first][order]
    depths = {
        "first": pieces.updates[pieces.first][order],
        "pieces": np.bincount(pieces.word)[words],
        "over_pieces": np.bincount(pieces.word, pieces.updates)[words] / np.bincount(pieces.word)[words],
        "sentence": sentences[words],
        "cosines": None if pieces.cosines is None else pieces.cosines[order],
    }
    summary: dict[str, Any] = {"kinds": {}}
    if len(words):
        summary["all"] = _summarise_class("all", depths, np.ones(len(words), dtype=bool), max_updates)
    for kind in CLASS_KINDS:
        names = np.array(classes[kind])[words]
        rows = [_summarise_class(str(name), depths, names == name, max_updates) for name in np.unique(names)]
        summary["kinds"][kind] = _sort_rows(kind, rows)
    return summary


def _summarise_class(
    name: str, depths: Mapping[str, Any], members: NDArray[np.bool_], max_updates: int
) -> dict[str, Any]:
    """Return the statistics of a linguistic class: counts, mean depth with its interval, and spread.

    `split` is the share of words with several pieces. `over_pieces` averages depth over the pieces of a word, and then
    over words. `cosine` has one value per iteration, averaged over the `cosine_n` first pieces that ran the iteration.
    """
    first, sentence = depths["first"][members], depths["sentence"][members]
    sums = sum_clusters(first, sentence)
    mean, over_pieces = sums.estimate_mean(), sum_clusters(depths["over_pieces"][members], sentence).estimate_mean()
    (mean_low, mean_high), (pieces_low, pieces_high) = mean.interval, over_pieces.interval
    low, median, high = np.quantile(first, (0.1, 0.5, 0.9), method="inverted_cdf")
    pieces, at_cap = depths["pieces"][members], float((first == max_updates).mean())
    counts = {"n": len(first), "sentences": int(sums.clusters), "mean": mean.mean, "low": mean_low, "high": mean_high}
    spread = {"std": float(first.std()), "p10": int(low), "median": int(median), "p90": int(high), "at_cap": at_cap}
    all_pieces = {"over_pieces": over_pieces.mean, "over_pieces_low": pieces_low, "over_pieces_high": pieces_high}
    split = {"pieces": float(pieces.mean()), "split": float((pieces > 1).mean())}
    row = {"class": name, **counts, **spread, **split, **all_pieces}
    return row if depths["cosines"] is None else row | _average_cosines(depths["cosines"][members])


def _average_cosines(cosines: NDArray[np.float32]) -> dict[str, Any]:
    ran = ~np.isnan(cosines)
    counts = ran.sum(axis=0)
    totals = np.where(ran, cosines, 0).sum(axis=0, dtype=np.float64)
    means = [float(total) / int(n) if n else None for total, n in zip(totals, counts, strict=True)]
    return {"cosine": means, "cosine_n": counts.tolist()}


def _sort_rows(kind: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if kind in _UNORDERED_KINDS:
        return sorted(rows, key=lambda row: (-row["mean"], row["class"]))
    order = _list_ordered_classes(kind)
    return sorted(rows, key=lambda row: order.index(row["class"]))
