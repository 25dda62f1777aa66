"""The classes that words are sorted into, one of each kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adadepth.measure.adaptation import estimate_clustered_mean

# Kind -> what its classes are, in the order of tables.
CLASS_KINDS: dict[str, str] = {
    "upos": "part of speech",
    "deprel": "relation: that to the head, subtypes within their main one",
    "tree_depth": "depth in the tree: arcs from the root, which has 0",
    "frequency": "frequency: occurrences in a million words",
    "deprel_full": "relation with its subtype",
}
_RANKED = ("upos", "deprel", "deprel_full")  # their classes have no order of their own
FILE_ONLY = ("deprel_full",)  # not shown, only written
DEEPEST = 7  # words this deep or deeper are one class
_BANDS = ((10_000, "10,000 or more"), (1_000, "1,000 to 10,000"), (100, "100 to 1,000"), (10, "10 to 100"))
_RAREST = "below 10"


def word_classes(
    upos: Sequence[str], deprel: Sequence[str], depth: Iterable[int], per_million: Iterable[float]
) -> dict[str, list[str]]:
    """The class of each word by kind; all arguments have an entry a word."""
    return {
        "upos": list(upos),
        "deprel": [relation.partition(":")[0] for relation in deprel],
        "tree_depth": [str(arcs) if arcs < DEEPEST else f"{DEEPEST} or more" for arcs in depth],
        "frequency": [_band(frequency) for frequency in per_million],
        "deprel_full": list(deprel),
    }


def _class_order(kind: str) -> list[str]:
    """The classes of a kind in their order; empty where they have none."""
    if kind == "tree_depth":
        return [*map(str, range(DEEPEST)), f"{DEEPEST} or more"]
    return [*(name for _, name in _BANDS), _RAREST] if kind == "frequency" else []


def _band(frequency: float) -> str:
    return next((name for least, name in _BANDS if frequency >= least), _RAREST)


@dataclass(frozen=True)
class Pieces:
    """What the pieces of words got, in any order.

    Attributes:
        word: Number of the word that each is a piece of, (K,) int64.
        first: Whether it is the word's first one, (K,) bool.
        updates: Its depth, (K,) float64.
        cosines: Of first pieces the similarity of the states before and after each iteration, NaN for iterations that
            they did not run, (first pieces, L) float32; None where the states are not known.
    """

    word: NDArray[np.int64]
    first: NDArray[np.bool_]
    updates: NDArray[np.float64]
    cosines: NDArray[np.float32] | None


def joined_pieces(parts: Sequence[Pieces]) -> Pieces:
    """The pieces of several batches or processes."""
    cosines = [part.cosines for part in parts if part.cosines is not None]
    return Pieces(
        np.concatenate([part.word for part in parts]),
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.updates for part in parts]),
        np.concatenate(cosines) if cosines else None,
    )


def describe_words(
    pieces: Pieces, classes: Mapping[str, Sequence[str]], sentences: NDArray[np.int64], max_updates: int
) -> dict[str, Any]:
    """Depths by class, as JSON values: the depth of a word's first piece, and beside it the mean over its pieces.

    Args:
        pieces: Of the set. Words without a first piece are not counted.
        classes: Class of every word of the treebank by kind.
        sentences: Number of the sentence that each word of the treebank belongs to.
        max_updates: L.

    Returns:
        `all`, a row of all words, and `kinds`: rows by kind, see `_row`; those of `_RANKED` deepest first.
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
    found: dict[str, Any] = {"kinds": {}}
    if len(words):
        found["all"] = _row("all", depths, np.ones(len(words), dtype=bool), max_updates)
    for kind in CLASS_KINDS:
        names = np.array(classes[kind])[words]
        rows = [_row(str(name), depths, names == name, max_updates) for name in np.unique(names)]
        found["kinds"][kind] = _sorted(kind, rows)
    return found


def _row(name: str, depths: Mapping[str, Any], members: NDArray[np.bool_], max_updates: int) -> dict[str, Any]:
    """What is told of a class: n words in how many sentences, spread of the depth of first pieces, mean and interval.

    `split` is the share of words of several pieces. `over_pieces` is the mean over words of the mean over their pieces.
    `cosine` has a value an iteration, over the first pieces that ran it, `cosine_n` of them.
    """
    first, sentence = depths["first"][members], depths["sentence"][members]
    mean, over_pieces = (
        estimate_clustered_mean(first, sentence),
        estimate_clustered_mean(depths["over_pieces"][members], sentence),
    )
    low, median, high = np.quantile(first, (0.1, 0.5, 0.9), method="inverted_cdf")
    pieces, at_cap = depths["pieces"][members], float((first == max_updates).mean())
    where = {"n": len(first), "sentences": mean.clusters, "mean": mean.mean, "low": mean.low, "high": mean.high}
    spread = {"std": float(first.std()), "p10": int(low), "median": int(median), "p90": int(high), "at_cap": at_cap}
    over = {"over_pieces": over_pieces.mean, "over_pieces_low": over_pieces.low, "over_pieces_high": over_pieces.high}
    split = {"pieces": float(pieces.mean()), "split": float((pieces > 1).mean())}
    row = {"class": name, **where, **spread, **split, **over}
    return row if depths["cosines"] is None else row | _cosines(depths["cosines"][members])


def _cosines(cosines: NDArray[np.float32]) -> dict[str, Any]:
    ran = ~np.isnan(cosines)
    counts = ran.sum(axis=0)
    totals = np.where(ran, cosines, 0).sum(axis=0, dtype=np.float64)
    means = [float(total) / int(n) if n else None for total, n in zip(totals, counts, strict=True)]
    return {"cosine": means, "cosine_n": counts.tolist()}


def _sorted(kind: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if kind in _RANKED:
        return sorted(rows, key=lambda row: (-row["mean"], row["class"]))
    order = _class_order(kind)
    return sorted(rows, key=lambda row: order.index(row["class"]))
