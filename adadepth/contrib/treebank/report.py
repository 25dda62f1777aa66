"""Depth by linguistic class as tables and text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.contrib.treebank.measures import CLASS_KINDS, FILE_ONLY
from adadepth.measure.adaptation import FEWEST_CLUSTERS
from adadepth.measure.metric_names import metric_name
from adadepth.report.figure import Axis, Figure, Panel, Ranges, Span, pad_range
from adadepth.report.file_types import OfSets
from adadepth.report.run_files import RunFiles, write_json
from adadepth.report.section import Placed, Section, fill
from adadepth.report.table import Column, Table, make_number_format, percent, text, to_csv, to_text
from adadepth.system.files import write_atomic

WORDS, WORDS_TABLE = "words.json", "depth_by_word.csv"

_Found = Mapping[str, Any]  # what words.json holds; see `every_row`
SHOWN = [kind for kind in CLASS_KINDS if kind not in FILE_ONLY]
_INTERVAL = Column("interval", "95 %", text, "text")


def kind_table(name: str, kind: str, readings: Mapping[str, _Found]) -> Table:
    """The classes of a kind: n, depth and interval of sentences as they are, and beside it of masked words.

    Args:
        name: Of the set.
        kind: See `adadepth.contrib.treebank.measures.CLASS_KINDS`.
        readings: `plain`, and `masked` where the model predicts masked words.
    """
    columns = [
        Column("class", kind, text, "text"),
        Column("n", "words"),
        Column("mean", "mean", make_number_format(2)),
        _INTERVAL,
        Column("p10"),
        Column("p90"),
        Column("over_pieces", "all pieces", make_number_format(2)),
        Column("split", "split", percent),
    ]
    if "masked" in readings:
        columns += [
            Column("masked_n", "masked words"),
            Column("masked_mean", "mean", make_number_format(2)),
            Column("masked_interval", "95 %", text, "text"),
        ]
    masked = {row["class"]: row for row in _with_all(readings.get("masked", {}), kind)}
    rows = []
    for row in _with_all(readings["plain"], kind):
        rows.append({**row, "interval": _interval(row)})
        if other := masked.get(row["class"]):
            named = {"masked_n": other["n"], "masked_mean": other["mean"], "masked_interval": _interval(other)}
            rows[-1] |= named
    return Table(f"depth_by_{kind}_{name}", columns, rows)


def cosine_table(name: str, kind: str, reading: _Found, max_updates: int) -> Table | None:
    """Similarity of the states before and after each iteration by class; None where the states are not known."""
    rows = [row for row in _with_all(reading, kind) if "cosine" in row]
    if not rows:
        return None
    steps = range(1, max_updates + 1)
    columns = [
        Column("class", kind, text, "text"),
        *(Column(f"cosine_{step}", str(step), make_number_format(3)) for step in steps),
    ]
    return Table(f"cosine_by_{kind}_{name}", columns, [{**row, **_cosines(row)} for row in rows])


def every_row(found: _Found) -> Table:
    """All classes of all kinds, sets and readings, a row each.

    Args:
        found: `max_depth`, and `sets`: by name, `plain` and `masked`, each from `describe_words`.
    """
    steps = range(1, found["max_depth"] + 1)
    keys = ["set", "reading", "kind", "class", "n", "sentences", "mean", "low", "high", "std", "p10", "median", "p90"]
    keys += ["at_cap", "pieces", "split", "over_pieces", "over_pieces_low", "over_pieces_high"]
    keys += [*(f"cosine_{step}" for step in steps), *(f"cosine_{step}_n" for step in steps)]
    rows = [
        {"set": name, "reading": reading, "kind": kind, **row, **_cosines(row)}
        for name, readings in found["sets"].items()
        for reading, described in readings.items()
        for kind, row in _rows(described)
    ]
    return Table("depth_by_word", [Column(key) for key in keys], rows)


def flatten_words(found: _Found) -> dict[str, float]:
    """What trackers show: mean depth of all words and of every part of speech, by set and reading."""
    return {
        metric_name(f"halting/{name}{'_masked' * (reading == 'masked')}/{kind}/{row['class']}/mean"): row["mean"]
        for name, readings in found["sets"].items()
        for reading, described in readings.items()
        for kind, row in _rows(described)
        if kind in ("word", "upos")
    }


def words_text(found: _Found) -> str:
    """The tables of all sets as text."""
    parts = []
    for name, readings in found["sets"].items():
        n, words = readings["plain"].get("all", {}).get("n", 0), found["words"][name]
        rest = " (the others are cut off)" if n < words else ""
        parts.append(
            f"depth by word, {name}: {found['sentences'][name]:,} sentences, {n:,} of their {words:,} words{rest}"
        )
        parts += [to_text(kind_table(name, kind, readings)) for kind in SHOWN]
    parts.append(
        "a word's depth is that of its first piece; all pieces: mean over words of the mean over their pieces; "
        "split: words of several pieces;\n95 %: interval of the mean with sentences as clusters, of "
        f"{FEWEST_CLUSTERS} or more; masked: first pieces fed as [MASK], by their true class"
    )
    return "\n\n".join(parts)


def _rows(described: _Found) -> Iterator[tuple[str, _Found]]:
    """(kind, row) of all words, which are the one class of the kind `word`, and of every class."""
    if "all" in described:
        yield "word", described["all"]
    yield from ((kind, row) for kind, rows in described["kinds"].items() for row in rows)


def _with_all(described: _Found, kind: str) -> list[_Found]:
    """The classes of a kind, after all words together."""
    return [*([described["all"]] if "all" in described else []), *described.get("kinds", {}).get(kind, [])]


def _cosines(row: _Found) -> dict[str, Any]:
    """A value an iteration under keys of their own."""
    values = {f"cosine_{step}": value for step, value in enumerate(row.get("cosine", []), start=1)}
    return values | {f"cosine_{step}_n": n for step, n in enumerate(row.get("cosine_n", []), start=1)}


def _interval(row: _Found) -> str | None:
    return None if row["low"] is None else f"{row['low']:.2f}–{row['high']:.2f}"


def write_words(directory: Path, found: Mapping[str, Any]) -> None:
    """Write words.json, the depths of a treebank's words by class, and depth_by_word.csv, its rows."""
    write_json(directory / WORDS, found)
    write_atomic(directory / WORDS_TABLE, to_csv(every_row(found)))


FEWEST_WORDS = 20  # words: the figures leave out rarer classes, whose intervals are as wide as the axis
_READINGS = {"plain": "as they are", "masked": "masked"}


def words(files: RunFiles) -> Section | None:
    """How deep words went, by what they are."""
    found = files.of(WORDS, OfSets)
    if not found:
        return None
    sets = [_set(name, readings, found) for name, readings in found["sets"].items()]
    figures = [kind["figure"] for each in sets for kind in each["kinds"] if kind["figure"].panels]
    tables = [table for each in sets for kind in each["kinds"] for table in (kind["table"], kind["cosines"]) if table]
    html = fill(
        "words", "adadepth.contrib.treebank", sets=sets, found=found, fewest=FEWEST_WORDS, clusters=FEWEST_CLUSTERS
    )
    of = "n = " + ", ".join(f"{each['n']:,} words of {each['name']}" for each in sets)
    return Section("Depth by linguistic class", "words", html, figures, tables, of=of)


def _set(name: str, readings: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a set: of every kind a figure and a table."""
    kinds = [
        {
            "title": CLASS_KINDS[kind],
            "figure": kind_figure(name, kind, readings),
            "table": kind_table(name, kind, readings),
            "cosines": cosine_table(name, kind, readings["plain"], found["max_depth"]),
        }
        for kind in SHOWN
    ]
    n = readings["plain"].get("all", {}).get("n", 0)
    return {"name": name, "sentences": found["sentences"][name], "words": found["words"][name], "n": n, "kinds": kinds}


def kind_figure(name: str, kind: str, readings: Mapping[str, Any]) -> Figure:
    """Mean depth and its interval of every class of a kind that has enough words: a panel a reading, on one axis."""
    order = [row["class"] for row in readings["plain"]["kinds"][kind]]
    drawn = {
        reading: [row for row in described["kinds"][kind] if row["n"] >= FEWEST_WORDS and row["low"] is not None]
        for reading, described in readings.items()
    }
    ends = [row[end] for rows in drawn.values() for row in rows for end in ("low", "high")]
    panels = []
    for reading, rows in drawn.items():
        title = f"{CLASS_KINDS[kind].partition(':')[0].capitalize()}, {_READINGS[reading]}"
        if rows:
            panels.append(_panel(title, sorted(rows, key=lambda row: order.index(row["class"])), pad_range(ends)))
    return Figure(f"depth_by_{kind}_{name}", panels)


def _panel(title: str, rows: Sequence[Mapping[str, Any]], span: Span) -> Panel:
    names = Axis("", (len(rows) - 0.4, -0.6), range(len(rows)), [f"{row['class']} ({row['n']:,})" for row in rows])
    depth = Axis("mean depth (updates) with its 95 % interval", span)
    intervals = [(row["low"], row["mean"], row["high"]) for row in rows]
    return Panel(title, Ranges(intervals), depth, names, tall=max(1.0, 0.09 * len(rows)))


WORDS_SECTION = Placed(70, words)
