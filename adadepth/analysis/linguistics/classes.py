"""The classes that words are sorted into, one of each kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# Kind -> what its classes are, in the order of tables.
KINDS: dict[str, str] = {
    "upos": "part of speech",
    "deprel": "relation: that to the head, subtypes within their main one",
    "tree_depth": "depth in the tree: arcs from the root, which has 0",
    "frequency": "frequency: occurrences in a million words",
    "deprel_full": "relation with its subtype",
}
RANKED = ("upos", "deprel", "deprel_full")  # their classes have no order of their own
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


def class_order(kind: str) -> list[str]:
    """The classes of a kind in their order; empty where they have none."""
    if kind == "tree_depth":
        return [*map(str, range(DEEPEST)), f"{DEEPEST} or more"]
    return [*(name for _, name in _BANDS), _RAREST] if kind == "frequency" else []


def _band(frequency: float) -> str:
    return next((name for least, name in _BANDS if frequency >= least), _RAREST)
