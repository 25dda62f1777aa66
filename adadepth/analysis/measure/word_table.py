"""Words and tags by their depth as tables, and in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adadepth.analysis.render.formats import number, percent, rounded
from adadepth.analysis.render.table import Column, Table, text

ENDS = ("deepest", "shallowest")
_TOLD = 6  # words and tags of a line
_DEPTH = [
    Column("n"), Column("sequences", "in sequences"), Column("mean", "mean", rounded(2)),
    Column("low", "from", rounded(2)), Column("high", "to", rounded(2)),
]  # fmt: skip


def word_table(end: str, words: Mapping[str, Any]) -> Table:
    """The deepest or the shallowest words, with the share of their occurrences that was left out."""
    rows = [{**row, "share": row["selected"] / (row["n"] + row["selected"])} for row in words[end]]
    hidden = [Column("share", "left out", percent)] if words["selected"] else []
    return Table(f"{end}_words", [Column("word", "word", text, "text"), *_DEPTH, *hidden], rows)


def tag_table(words: Mapping[str, Any]) -> Table:
    """The classes that words are tagged with, deepest first."""
    return Table("depth_by_tag", [Column("tag", "tag", text, "text"), *_DEPTH], words["tags"])


def words_lines(words: Mapping[str, Any]) -> Iterator[str]:
    """The ends of the two rankings, a line each; nothing where no word is ranked."""
    for end in ENDS:
        if words.get(end):
            yield f"{end} words: {_listed(words[end], 'word')}"
    if words.get("tags"):
        yield f"deepest tags: {_listed(words['tags'], 'tag')}"


def _listed(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    return ", ".join(f"{row[key]} {row['mean']:.2f} (n {number(row['n'])})" for row in rows[:_TOLD])
