"""The words of an evaluated text that went deepest and shallowest, and the classes that its words are tagged with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.analysis.files import RunFiles, where_and_when
from adadepth.analysis.measure.word_table import ENDS, tag_table, word_table
from adadepth.analysis.render.figure import Axis, Figure, Panel, Ranges, padded
from adadepth.analysis.render.section import Section, fill

Row = Mapping[str, Any]


def ranked_words(files: RunFiles) -> Section | None:
    """Deepest and shallowest words; None where no word is ranked."""
    words = files.halting.get("words") or {}
    if not words.get("ranked") and not words.get("tags"):
        return None
    tables = {end: word_table(end, words) for end in ENDS if words[end]}
    tags = tag_table(words) if words["tags"] else None
    figure = words_figure(words)
    html = fill("ranked_words", words=words, tables=tables, tags=tags, figure=figure)
    figures = [figure] if figure.panels else []
    of = f"n = {words['n']:,} words{where_and_when(files)}"
    return Section("Deepest and shallowest words", "ranked-words", html, figures,
                   [*tables.values(), *([tags] if tags else [])], of=of)  # fmt: skip


def words_figure(words: Mapping[str, Any]) -> Figure:
    """Mean depth and interval: a panel for either end, and one for tags, on one axis."""
    panels = [(f"The {end} words", "word", words[end]) for end in ENDS]
    panels.append(("By tag, deepest first", "tag", [row for row in words["tags"] if row["low"] is not None]))
    ends = [row[side] for *_, rows in panels for row in rows for side in ("low", "high")]
    return Figure("words", [_panel(*panel, ends) for panel in panels if panel[-1]])


def _panel(title: str, key: str, rows: Sequence[Row], ends: Sequence[float]) -> Panel:
    names = [f"{row[key]} ({row['n']:,})" for row in rows]
    up = Axis("", (len(rows) - 0.4, -0.6), range(len(rows)), names)
    across = Axis("mean depth (updates) with its 95 % interval", padded(ends))
    drawn = Ranges([(row["low"], row["mean"], row["high"]) for row in rows])
    return Panel(title, drawn, across, up, tall=max(0.6, 0.09 * len(rows)))
