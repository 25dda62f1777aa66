"""Depth by linguistic class as tables and text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from adadepth.analysis.linguistics.classes import FILE_ONLY, KINDS
from adadepth.analysis.measure.intervals import FEWEST
from adadepth.analysis.measure.names import metric_name
from adadepth.analysis.render.formats import percent, rounded
from adadepth.analysis.render.table import Column, Table, as_text, text

Found = Mapping[str, Any]  # what words.json holds; see `every_row`
SHOWN = [kind for kind in KINDS if kind not in FILE_ONLY]
_INTERVAL = Column("interval", "95 %", text, "text")


def kind_table(name: str, kind: str, readings: Mapping[str, Found]) -> Table:
    """The classes of a kind: n, depth and interval of sentences as they are, and beside it of masked words.

    Args:
        name: Of the set.
        kind: See `adadepth.analysis.linguistics.classes.KINDS`.
        readings: `plain`, and `masked` where the model predicts masked words.
    """
    columns = [
        Column("class", kind, text, "text"), Column("n", "words"), Column("mean", "mean", rounded(2)), _INTERVAL,
        Column("p10"), Column("p90"), Column("over_pieces", "all pieces", rounded(2)),
        Column("split", "split", percent),
    ]  # fmt: skip
    if "masked" in readings:
        columns += [
            Column("masked_n", "masked words"), Column("masked_mean", "mean", rounded(2)),
            Column("masked_interval", "95 %", text, "text"),
        ]  # fmt: skip
    masked = {row["class"]: row for row in _with_all(readings.get("masked", {}), kind)}
    rows = []
    for row in _with_all(readings["plain"], kind):
        rows.append({**row, "interval": _interval(row)})
        if other := masked.get(row["class"]):
            named = {"masked_n": other["n"], "masked_mean": other["mean"], "masked_interval": _interval(other)}
            rows[-1] |= named
    return Table(f"depth_by_{kind}_{name}", columns, rows)


def cosine_table(name: str, kind: str, reading: Found, max_depth: int) -> Table | None:
    """Similarity of the states before and after each iteration by class; None where the states are not known."""
    rows = [row for row in _with_all(reading, kind) if "cosine" in row]
    if not rows:
        return None
    steps = range(1, max_depth + 1)
    columns = [
        Column("class", kind, text, "text"),
        *(Column(f"cosine_{step}", str(step), rounded(3)) for step in steps),
    ]
    return Table(f"cosine_by_{kind}_{name}", columns, [{**row, **_cosines(row)} for row in rows])


def every_row(found: Found) -> Table:
    """All classes of all kinds, sets and readings, a row each.

    Args:
        found: `max_depth`, and `sets`: by name, `plain` and `masked`, each from `describe_words`.
    """
    steps = range(1, found["max_depth"] + 1)
    keys = (
        "set", "reading", "kind", "class", "n", "sentences", "mean", "low", "high", "std", "p10", "median", "p90",
        "at_cap", "pieces", "split", "over_pieces", "over_pieces_low", "over_pieces_high",
        *(f"cosine_{step}" for step in steps), *(f"cosine_{step}_n" for step in steps),
    )  # fmt: skip
    rows = [
        {"set": name, "reading": reading, "kind": kind, **row, **_cosines(row)}
        for name, readings in found["sets"].items()
        for reading, described in readings.items()
        for kind, row in _rows(described)
    ]
    return Table("depth_by_word", [Column(key) for key in keys], rows)


def flatten_words(found: Found) -> dict[str, float]:
    """What trackers show: mean depth of all words and of every part of speech, by set and reading."""
    return {
        metric_name(f"halting/{name}{'_masked' * (reading == 'masked')}/{kind}/{row['class']}/mean"): row["mean"]
        for name, readings in found["sets"].items()
        for reading, described in readings.items()
        for kind, row in _rows(described)
        if kind in ("word", "upos")
    }


def words_text(found: Found) -> str:
    """The tables of all sets as text."""
    parts = []
    for name, readings in found["sets"].items():
        n, words = readings["plain"].get("all", {}).get("n", 0), found["words"][name]
        rest = " (the others are cut off)" if n < words else ""
        parts.append(
            f"depth by word, {name}: {found['sentences'][name]:,} sentences, {n:,} of their {words:,} words{rest}"
        )
        parts += [as_text(kind_table(name, kind, readings)) for kind in SHOWN]
    parts.append(
        "a word's depth is that of its first piece; all pieces: mean over words of the mean over their pieces; "
        "split: words of several pieces;\n95 %: interval of the mean with sentences as clusters, of "
        f"{FEWEST} or more; masked: first pieces fed as [MASK], by their true class"
    )
    return "\n\n".join(parts)


def _rows(described: Found) -> Iterator[tuple[str, Found]]:
    """(kind, row) of all words, which are the one class of the kind `word`, and of every class."""
    if "all" in described:
        yield "word", described["all"]
    yield from ((kind, row) for kind, rows in described["kinds"].items() for row in rows)


def _with_all(described: Found, kind: str) -> list[Found]:
    """The classes of a kind, after all words together."""
    return [*([described["all"]] if "all" in described else []), *described.get("kinds", {}).get(kind, [])]


def _cosines(row: Found) -> dict[str, Any]:
    """A value an iteration under keys of their own."""
    values = {f"cosine_{step}": value for step, value in enumerate(row.get("cosine", []), start=1)}
    return values | {f"cosine_{step}_n": n for step, n in enumerate(row.get("cosine_n", []), start=1)}


def _interval(row: Found) -> str | None:
    return None if row["low"] is None else f"{row['low']:.2f}–{row['high']:.2f}"
