"""The section of the report on the words of a treebank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.analysis.files import RunFiles
from adadepth.analysis.linguistics.classes import KINDS
from adadepth.analysis.linguistics.tables import SHOWN, cosine_table, kind_table
from adadepth.analysis.measure import intervals
from adadepth.analysis.render.figure import Axis, Figure, Panel, Ranges, Span, padded
from adadepth.analysis.render.section import Section, fill

FEWEST = 20  # words: the figures leave out rarer classes, whose intervals are as wide as the axis
_READINGS = {"plain": "as they are", "masked": "masked"}


def words(files: RunFiles) -> Section | None:
    """How deep words went, by what they are."""
    if not files.words:
        return None
    found = files.words
    sets = [_set(name, readings, found) for name, readings in found["sets"].items()]
    figures = [kind["figure"] for each in sets for kind in each["kinds"] if kind["figure"].panels]
    tables = [table for each in sets for kind in each["kinds"] for table in (kind["table"], kind["cosines"]) if table]
    html = fill("words", sets=sets, found=found, fewest=FEWEST, clusters=intervals.FEWEST)
    of = "n = " + ", ".join(f"{each['n']:,} words of {each['name']}" for each in sets)
    return Section("Depth by linguistic class", "words", html, figures, tables, of=of)


def _set(name: str, readings: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a set: of every kind a figure and a table."""
    kinds = [
        {
            "title": KINDS[kind],
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
        reading: [row for row in described["kinds"][kind] if row["n"] >= FEWEST and row["low"] is not None]
        for reading, described in readings.items()
    }
    ends = [row[end] for rows in drawn.values() for row in rows for end in ("low", "high")]
    panels = [
        _panel(f"{KINDS[kind].partition(':')[0].capitalize()}, {_READINGS[reading]}",
               sorted(rows, key=lambda row: order.index(row["class"])), padded(ends))
        for reading, rows in drawn.items() if rows
    ]  # fmt: skip
    return Figure(f"depth_by_{kind}_{name}", panels)


def _panel(title: str, rows: Sequence[Mapping[str, Any]], span: Span) -> Panel:
    names = Axis("", (len(rows) - 0.4, -0.6), range(len(rows)), [f"{row['class']} ({row['n']:,})" for row in rows])
    depth = Axis("mean depth (updates) with its 95 % interval", span)
    intervals = [(row["low"], row["mean"], row["high"]) for row in rows]
    return Panel(title, Ranges(intervals), depth, names, tall=max(1.0, 0.09 * len(rows)))
