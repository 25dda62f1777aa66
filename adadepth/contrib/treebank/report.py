"""Tables, text, files and report section on mean depth by linguistic class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.contrib.treebank.measures import CLASS_KINDS, FILE_ONLY
from adadepth.metrics.metric_names import metric_name
from adadepth.metrics.significance import FEWEST_CLUSTERS
from adadepth.report.figure import Axis, Figure, Panel, Ranges, Span, pad_range
from adadepth.report.file_types import OfSets
from adadepth.report.run_files import RunFiles, write_json
from adadepth.report.section import Section, SectionEntry, fill
from adadepth.report.table import Column, Table, make_number_format, percent, text, to_csv, to_text
from adadepth.runtime.files import write_atomic

WORDS, WORDS_TABLE = "words.json", "depth_by_word.csv"

_WordSummary = Mapping[str, Any]  # content of words.json, or a part of it; see `build_full_table`
SHOWN_KINDS = [kind for kind in CLASS_KINDS if kind not in FILE_ONLY]
_INTERVAL = Column("interval", "95 %", text, "text")


def build_kind_table(name: str, kind: str, readings: Mapping[str, _WordSummary]) -> Table:
    """Build the table of mean depth for each class of one classification, without and with masked words.

    Args:
        name: Name of the set.
        kind: Kind of classes from `adadepth.contrib.treebank.measures.CLASS_KINDS`.
        readings: Statistics of `plain` sentences, and of `masked` sentences if the model predicts masked words.
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
    masked = {row["class"]: row for row in _prepend_all_words(readings.get("masked", {}), kind)}
    rows = []
    for row in _prepend_all_words(readings["plain"], kind):
        rows.append({**row, "interval": _format_interval(row)})
        if masked_row := masked.get(row["class"]):
            masked_cells = {
                "masked_n": masked_row["n"],
                "masked_mean": masked_row["mean"],
                "masked_interval": _format_interval(masked_row),
            }
            rows[-1] |= masked_cells
    return Table(f"depth_by_{kind}_{name}", columns, rows)


def build_cosine_table(name: str, kind: str, reading: _WordSummary, max_updates: int) -> Table | None:
    """Build the table of hidden-state similarity before and after each iteration; None without states."""
    rows = [row for row in _prepend_all_words(reading, kind) if "cosine" in row]
    if not rows:
        return None
    steps = range(1, max_updates + 1)
    columns = [
        Column("class", kind, text, "text"),
        *(Column(f"cosine_{step}", str(step), make_number_format(3)) for step in steps),
    ]
    return Table(f"cosine_by_{kind}_{name}", columns, [{**row, **_flatten_cosines(row)} for row in rows])


def build_full_table(summary: _WordSummary) -> Table:
    """Build the table of all classes, over all classifications and splits, plain and masked.

    Args:
        summary: Mapping with `max_depth` and `sets`. Each set has `plain` and, if it was measured, `masked`, from
            `describe_words`.
    """
    steps = range(1, summary["max_depth"] + 1)
    keys = ["set", "reading", "kind", "class", "n", "sentences", "mean", "low", "high", "std", "p10", "median", "p90"]
    keys += ["at_cap", "pieces", "split", "over_pieces", "over_pieces_low", "over_pieces_high"]
    keys += [*(f"cosine_{step}" for step in steps), *(f"cosine_{step}_n" for step in steps)]
    rows = [
        {"set": name, "reading": reading, "kind": kind, **row, **_flatten_cosines(row)}
        for name, readings in summary["sets"].items()
        for reading, reading_summary in readings.items()
        for kind, row in _iterate_rows(reading_summary)
    ]
    return Table("depth_by_word", [Column(key) for key in keys], rows)


def flatten_words(summary: _WordSummary) -> dict[str, float]:
    """Return metrics for trackers: mean depth of all words and of each part of speech.

    There is one metric for each set and reading (plain or masked).
    """
    return {
        metric_name(f"halting/{name}{'_masked' * (reading == 'masked')}/{kind}/{row['class']}/mean"): row["mean"]
        for name, readings in summary["sets"].items()
        for reading, reading_summary in readings.items()
        for kind, row in _iterate_rows(reading_summary)
        if kind in ("word", "upos")
    }


def format_words(summary: _WordSummary) -> str:
    """Format the tables of all sets as text."""
    parts = []
    for name, readings in summary["sets"].items():
        n, words = readings["plain"].get("all", {}).get("n", 0), summary["words"][name]
        remark = " (the others are truncated)" if n < words else ""
        parts.append(
            f"depth by word, {name}: {summary['sentences'][name]:,} sentences, {n:,} of their {words:,} words{remark}"
        )
        parts += [to_text(build_kind_table(name, kind, readings)) for kind in SHOWN_KINDS]
    parts.append(
        "a word's depth is that of its first piece; all pieces: mean over words of the mean over their pieces; "
        "split: words of several pieces;\n95 %: interval of the mean with sentences as clusters, of "
        f"{FEWEST_CLUSTERS} or more; masked: first pieces fed as [MASK], by their true class"
    )
    return "\n\n".join(parts)


def _iterate_rows(reading_summary: _WordSummary) -> Iterator[tuple[str, _WordSummary]]:
    """Yield (classification, statistics) for all words together and for every class."""
    if "all" in reading_summary:
        yield "word", reading_summary["all"]
    yield from ((kind, row) for kind, rows in reading_summary["kinds"].items() for row in rows)


def _prepend_all_words(reading_summary: _WordSummary, kind: str) -> list[_WordSummary]:
    """Return the statistics of all words, followed by those of a classification's classes."""
    return [
        *([reading_summary["all"]] if "all" in reading_summary else []),
        *reading_summary.get("kinds", {}).get(kind, []),
    ]


def _flatten_cosines(row: _WordSummary) -> dict[str, Any]:
    """Return the cosine similarity of each iteration under a separate key."""
    values = {f"cosine_{step}": value for step, value in enumerate(row.get("cosine", []), start=1)}
    return values | {f"cosine_{step}_n": n for step, n in enumerate(row.get("cosine_n", []), start=1)}


def _format_interval(row: _WordSummary) -> str | None:
    return None if row["low"] is None else f"{row['low']:.2f}–{row['high']:.2f}"


def write_words(directory: Path, summary: Mapping[str, Any]) -> None:
    """Write the depth statistics to words.json and, as a table, to depth_by_word.csv."""
    write_json(directory / WORDS, summary)
    write_atomic(directory / WORDS_TABLE, to_csv(build_full_table(summary)))


FEWEST_WORDS = 20  # rarer classes are left out of figures, because their intervals are as wide as the axis
_READING_LABELS = {"plain": "as they are", "masked": "masked"}


def words(files: RunFiles) -> Section | None:
    """Build the report section on depth by linguistic class, or return None for a run without words.json."""
    summary = files.of(WORDS, OfSets)
    if not summary:
        return None
    sets = [_describe_set(name, readings, summary) for name, readings in summary["sets"].items()]
    figures = [kind["figure"] for word_set in sets for kind in word_set["kinds"] if kind["figure"].panels]
    tables = [
        table for word_set in sets for kind in word_set["kinds"] for table in (kind["table"], kind["cosines"]) if table
    ]
    html = fill(
        "words", "adadepth.contrib.treebank", sets=sets, words=summary, fewest=FEWEST_WORDS, clusters=FEWEST_CLUSTERS
    )
    sample = "n = " + ", ".join(f"{word_set['n']:,} words of {word_set['name']}" for word_set in sets)
    return Section("Depth by linguistic class", "words", html, figures, tables, of=sample)


def _describe_set(name: str, readings: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return figure and tables of each classification for one treebank split."""
    kinds = [
        {
            "title": CLASS_KINDS[kind],
            "figure": build_kind_figure(name, kind, readings),
            "table": build_kind_table(name, kind, readings),
            "cosines": build_cosine_table(name, kind, readings["plain"], summary["max_depth"]),
        }
        for kind in SHOWN_KINDS
    ]
    n = readings["plain"].get("all", {}).get("n", 0)
    return {
        "name": name,
        "sentences": summary["sentences"][name],
        "words": summary["words"][name],
        "n": n,
        "kinds": kinds,
    }


def build_kind_figure(name: str, kind: str, readings: Mapping[str, Any]) -> Figure:
    """Plot mean depth with its interval for each class that has enough words.

    There is one panel per reading (plain or masked), with a shared axis.
    """
    order = [row["class"] for row in readings["plain"]["kinds"][kind]]
    shown_rows = {
        reading: [row for row in reading_summary["kinds"][kind] if row["n"] >= FEWEST_WORDS and row["low"] is not None]
        for reading, reading_summary in readings.items()
    }
    bounds = [row[end] for rows in shown_rows.values() for row in rows for end in ("low", "high")]
    panels = []
    for reading, rows in shown_rows.items():
        title = f"{CLASS_KINDS[kind].partition(':')[0].capitalize()}, {_READING_LABELS[reading]}"
        if rows:
            panels.append(
                _build_panel(title, sorted(rows, key=lambda row: order.index(row["class"])), pad_range(bounds))
            )
    return Figure(f"depth_by_{kind}_{name}", panels)


def _build_panel(title: str, rows: Sequence[Mapping[str, Any]], span: Span) -> Panel:
    names = Axis("", (len(rows) - 0.4, -0.6), range(len(rows)), [f"{row['class']} ({row['n']:,})" for row in rows])
    depth = Axis("mean depth (updates) with its 95 % interval", span)
    intervals = [(row["low"], row["mean"], row["high"]) for row in rows]
    return Panel(title, Ranges(intervals), depth, names, tall=max(1.0, 0.09 * len(rows)))


WORDS_SECTION = SectionEntry(70, words)
