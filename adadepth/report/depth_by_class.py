"""Report sections and files on depth by class of tokens or sequences, and by word and tag."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.metrics.adaptation import is_measurable
from adadepth.metrics.metric_names import CLASS_DEFINITIONS, definition, find_first_depth, get_unit_wording
from adadepth.metrics.unit_costs import compute_share_with_predictions, format_compute_shares
from adadepth.report.figure import Axis, Figure, Heat, Panel, Ranges, build_depth_axis, pad_range
from adadepth.report.run_files import (
    DEPTH_BY_CLASS,
    HALTING,
    SENTENCES,
    RunFiles,
    describe_set_and_step,
    get_run_unit,
    halts,
    write_json,
)
from adadepth.report.section import Section, SectionEntry, absent, fill
from adadepth.report.table import (
    SPARKLINES,
    Column,
    Table,
    Where,
    make_number_format,
    number,
    percent,
    text,
    to_csv,
    to_text,
)
from adadepth.runtime.files import write_atomic

ENDS = ("deepest", "shallowest")
_MOST_WORDS = 6  # words and tags of a line
_DEPTH_COLUMNS = [
    Column("n"),
    Column("sequences", "in sequences"),
    Column("mean", "mean", make_number_format(2)),
    Column("low", "from", make_number_format(2)),
    Column("high", "to", make_number_format(2)),
]


def build_word_table(end: str, words: Mapping[str, Any]) -> Table:
    """Build the table of the words with the highest or lowest mean depth, and the share of words not measured."""
    rows = [{**row, "share": row["selected"] / (row["n"] + row["selected"])} for row in words[end]]
    hidden = [Column("share", "left out", percent)] if words["selected"] else []
    return Table(f"{end}_words", [Column("word", "word", text, "text"), *_DEPTH_COLUMNS, *hidden], rows)


def build_tag_table(words: Mapping[str, Any]) -> Table:
    """Build the table of mean depth by word tag (such as the part of speech), the deepest first."""
    return Table("depth_by_tag", [Column("tag", "tag", text, "text"), *_DEPTH_COLUMNS], words["tags"])


def format_word_lines(words: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line each for the deepest words, the shallowest words, and the tags, if the run has them."""
    for end in ENDS:
        if words.get(end):
            yield f"{end} words: {_join_words(words[end], 'word')}"
    if words.get("tags"):
        yield f"deepest tags: {_join_words(words['tags'], 'tag')}"


def _join_words(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    return ", ".join(f"{row[key]} {row['mean']:.2f} (n {number(row['n'])})" for row in rows[:_MOST_WORDS])


def build_class_table(summary: Mapping[str, Any]) -> Table:
    """Build the table of depth statistics from halting.json, with one row per class."""
    first, last = find_first_depth(summary), summary["max_depth"]
    is_predicted = any("accuracy" in described for described in summary["classes"].values())
    accuracy: Where = "everywhere" if is_predicted else "file"
    columns = [
        Column("class", "class", text, "text", remark="definition"),
        Column("n"),
        Column("mean", "mean", make_number_format(2)),
        Column("std", "sd", make_number_format(2)),
        Column("p10"),
        Column("median", where="file"),
        Column("p90"),
        Column("at_cap", "at max", percent),
        *(Column(key, where="file") for key in ("entropy", "remainder", "ponder_cost")),
        Column("loss", "loss", make_number_format(3)),
        Column("loss_n", where="file"),
        Column("accuracy", "accuracy", percent, where=accuracy),
        Column("accuracy_n", where="file"),
        Column("range", "p10–mean–p90", kind="range", axis=(first, last), where="page"),
        Column("shape", f"depths {first}…{last}", kind="shape", axis=(first, last), where="view"),
        *(Column(f"depth_{depth}", where="file") for depth in range(last + 1)),
    ]
    rows = [_build_row(name, described, summary.get("unit", "token")) for name, described in summary["classes"].items()]
    return Table("depth_by_class", columns, rows)


def _build_row(name: str, described: Mapping[str, Any], unit: str) -> dict[str, Any]:
    defined = definition(name) if unit == "sequence" else CLASS_DEFINITIONS.get(name, definition(name))
    if not described["n"]:
        return {"class": name, "definition": f"{defined}: no {unit} of this class in the evaluated set", "n": 0}
    histogram = described["histogram"]
    return {
        "class": name,
        "definition": defined,
        **described,
        "range": (described["p10"], described["mean"], described["p90"]),
        "shape": [count / described["n"] for count in histogram],
        **{f"depth_{depth}": count for depth, count in enumerate(histogram)},
    }


def format_halting(summary: Mapping[str, Any], step: int | None = None) -> str:
    """Format halting.json as text: a header, a line per class, and the reason for each absent value.

    Args:
        summary: Result of `HaltingStatistics.summary`.
        step: Number of optimiser steps done, for the header.

    Returns:
        Lines of ASCII without a trailing newline. An absent value is printed as `-`.
    """
    unit = summary["unit"]
    loss = f"loss: mean over {unit}s with a loss, in nats" + (
        " (of values: squared error)" if unit == "sequence" else ""
    )
    lines = [*_format_header(summary, step), "", to_text(build_class_table(summary))]
    lines += [f"{SPARKLINES}; {loss}", *list_unavailable(summary)]
    if summary["classes"]["all"].get("std") != 0:  # words of one depth have no order
        lines += format_word_lines(summary.get("words", {}))
    lines += filter(None, [format_adaptation_warning(summary)])
    return "\n".join(lines)


def format_adaptation_warning(summary: Mapping[str, Any], set_name: str = "") -> str | None:
    """Format the warning that depth does not adapt, with the advice for it, or return None if halting.json has none.

    Args:
        summary: Content of halting.json.
        set_name: Name of the evaluated set for the warning, or empty for no name.
    """
    adaptation = summary.get("adaptation", {})
    if "warning" not in adaptation:
        return None
    warning = f"on {set_name}, {adaptation['warning']}" if set_name else adaptation["warning"]
    return ": ".join(["warning", warning, *([adaptation["advice"]] if "advice" in adaptation else [])])


def list_unavailable(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each value that could not be computed, with the reason."""
    return [f"not available: {name}: {reason}" for name, reason in summary["missing"].items()]


def format_at_step(step: int | None) -> str:
    """Return ` at step N` for a header, or an empty text if the evaluation has no optimiser step."""
    return "" if step is None else f" at step {step:,}"


def _format_header(summary: Mapping[str, Any], step: int | None) -> list[str]:
    everyone = summary["classes"]["all"]
    first = [f"halting{format_at_step(step)}: {summary['n']:,} {summary['unit']}s"]
    if "mean" in everyone:
        first.append(
            f"updates {everyone['mean']:.2f} +- {everyone['std']:.2f} (median {everyone['median']}) "
            f"of at most {summary['max_depth']}"
        )
    first += [f"{key.replace('_', ' ')} {everyone[key]:.3f}" for key in ("remainder", "ponder_cost") if key in everyone]
    second = describe_cost(summary)
    correlations = (
        ("loss", summary["spearman"].get("all")),
        ("difficulty", summary.get("difficulty", {}).get("spearman")),
    )
    for other, correlation in correlations:
        if correlation:
            interval = f"[{correlation['low']:+.3f}, {correlation['high']:+.3f}]"
            value = f"{correlation['value']:+.3f} {interval}" if is_measurable(correlation) else "not measurable"
            second.append(f"Spearman(depth, {other}) {value}, n {correlation['n']:,}")
    return ["; ".join(part) for part in (first, second) if part]


def describe_cost(summary: Mapping[str, Any]) -> list[str]:
    """Describe the compute that the depths require, and that of the evaluation, as shares of full depth.

    Args:
        summary: Content of halting.json.
    """
    cost, words = summary["cost"], get_unit_wording(summary["unit"])
    if "adaptive_over_full" not in cost:
        return []
    ran = percent(cost["executed_over_full"])
    if "executed_over_dense" in cost and words.halts:
        ran += f", {percent(cost['executed_over_dense'])} of dense"
    share = compute_share_with_predictions(summary)
    needed = format_compute_shares(cost["adaptive_over_full"], share, percent, words.of_full)
    return [f"compute needed {needed}; this evaluation ran {ran}"]


_FURTHER_SET_KEYS = ("difficulty", "attributes")  # what halting.json has of sets that do not select the model


def write_halting_files(
    directory: Path,
    summary: Mapping[str, Any],
    sentences: Sequence[Mapping[str, Any]],
    step: int,
    name: str | None = None,
    further_sets: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write halting.json and, if tokens or sequences have depths, depth_by_class.csv and sentences.jsonl.

    Args:
        directory: Run directory.
        summary: Result of `HaltingStatistics.summary` for the set that selects the model.
        sentences: Result of `SentenceSampler.sentences` for the same set.
        step: Number of optimiser steps done.
        name: Name of the set that selects the model.
        further_sets: Summaries of other sets by name. Only their difficulty and attributes are stored.
    """
    summaries = {
        set_name: {key: other[key] for key in _FURTHER_SET_KEYS if key in other}
        for set_name, other in (further_sets or {}).items()
    }
    summaries = {set_name: selected for set_name, selected in summaries.items() if selected}
    set_field = {} if name is None else {"set": name}
    write_json(
        directory / HALTING,
        {"step": step, **set_field, **summary, **({"further_sets": summaries} if summaries else {})},
    )
    if summary["unit"] == "architecture":
        return
    write_atomic(directory / DEPTH_BY_CLASS, to_csv(build_class_table(summary)))
    lines = (json.dumps(sentence, ensure_ascii=False, allow_nan=False) for sentence in sentences)
    write_atomic(directory / SENTENCES, "".join(f"{line}\n" for line in lines))


def classes(files: RunFiles) -> Section | None:
    """Build the report section on depth by class of tokens or sequences."""
    if not halts(files):
        return None
    unit, title = get_run_unit(files), f"Depth by {get_run_unit(files)} class"
    if not files.halting.get("classes"):
        return Section(title, "classes", absent("Depth by class is", files, "halting.json"))
    table = build_class_table(files.halting)
    shows_accuracy = any("accuracy" in row for row in table.rows)
    depths = {"first": find_first_depth(files.halting), "max_updates": files.halting["max_depth"]}
    html = fill("classes:classes", table=table, unit=unit, shows_accuracy=shows_accuracy, **depths)
    return Section(title, "classes", html, draw_class_figures(files), [table])


def draw_class_figures(files: RunFiles) -> list[Figure]:
    """Draw the mean and spread, and the distribution, of depth for every class that is not empty."""
    halting = files.halting
    populated = {name: described for name, described in halting["classes"].items() if described["n"]}
    if not populated:
        return []
    first, last = find_first_depth(halting), halting["max_depth"]
    names = Axis("", (len(populated) - 0.4, -0.6), range(len(populated)), list(populated))
    depth = build_depth_axis("depth (updates)", last, first)
    ranges = [(row["p10"], row["mean"], row["p90"]) for row in populated.values()]
    columns = [
        [row["histogram"][depth_index] / row["n"] for row in populated.values()]
        for depth_index in range(first, last + 1)
    ]
    tall = max(1.0, 0.09 * len(populated))
    panels = [
        Panel("Depth by class: mean, p10 to p90", Ranges(ranges), depth, names, tall=tall),
        Panel(
            "Distribution of each class",
            Heat(columns, f"share of {get_run_unit(files)}s", first),
            depth,
            names,
            tall=tall,
        ),
    ]
    return [Figure("depth_by_class", panels)]


_Row = Mapping[str, Any]


def ranked_words(files: RunFiles) -> Section | None:
    """Build the report section on the words with the highest and lowest mean depth.

    Return None if no word is ranked, or all tokens have the same depth.
    """
    words = files.halting.get("words") or {}
    if not words.get("ranked") and not words.get("tags"):
        return None
    if files.halting["classes"].get("all", {}).get("std") == 0:
        return None
    tables = {end: build_word_table(end, words) for end in ENDS if words[end]}
    tags = build_tag_table(words) if words["tags"] else None
    figure = draw_words_figure(words)
    html = fill("classes:ranked_words", words=words, tables=tables, tags=tags, figure=figure)
    figures = [figure] if figure.panels else []
    sample = f"n = {words['n']:,} words{describe_set_and_step(files)}"
    tables_shown = [*tables.values(), *([tags] if tags else [])]
    return Section("Deepest and shallowest words", "ranked-words", html, figures, tables_shown, of=sample)


def draw_words_figure(words: Mapping[str, Any]) -> Figure:
    """Draw the mean depths of words, with their intervals, on a shared axis.

    There is one panel each for the deepest words, the shallowest words and the tags.
    """
    panels = [(f"The {end} words", "word", words[end]) for end in ENDS]
    panels.append(("By tag, deepest first", "tag", [row for row in words["tags"] if row["low"] is not None]))
    ends = [row[side] for *_, rows in panels for row in rows for side in ("low", "high")]
    return Figure("words", [_build_ranges_panel(*panel, ends) for panel in panels if panel[-1]])


def _build_ranges_panel(title: str, key: str, rows: Sequence[_Row], ends: Sequence[float]) -> Panel:
    names = [f"{row[key]} ({row['n']:,})" for row in rows]
    y_axis = Axis("", (len(rows) - 0.4, -0.6), range(len(rows)), names)
    x_axis = Axis("mean depth (updates) with its 95 % interval", pad_range(ends))
    ranges = Ranges([(row["low"], row["mean"], row["high"]) for row in rows])
    return Panel(title, ranges, x_axis, y_axis, tall=max(0.6, 0.09 * len(rows)))


SECTIONS = (SectionEntry(80, classes), SectionEntry(90, ranked_words))
