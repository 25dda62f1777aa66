"""Report section on how depth and accuracy vary with difficulty or another attribute of the examples.

Puzzles have attributes instead. Difficulty is one of them or follows from one, so it is not reported separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.metrics.metric_names import find_first_depth
from adadepth.report.figure import Axis, Curves, Figure, Lines, Panel, build_depth_axis, ticks
from adadepth.report.matched_networks import get_depth
from adadepth.report.run_files import RIVALS, RunFiles, get_run_unit
from adadepth.report.section import Section, SectionEntry, fill
from adadepth.report.table import Column, Table, interval, make_number_format, percent, signed, text, to_text

DIFFICULTY = "difficulty"


def difficulty(files: RunFiles) -> Section | None:
    """Build the report section on depth by difficulty, with curves, correlations and tables of every evaluated set."""
    by_attribute = get_attribute_statistics(files.halting)
    if not by_attribute:
        return None
    rivals = _get_rival_accuracies(files) if DIFFICULTY in by_attribute else []
    panels = [
        panel for name, sets in by_attribute.items() for panel in _build_panels(name, sets, files.halting, rivals)
    ]
    figure = Figure("difficulty", panels)
    attribute, within = (
        ("attribute", "attribute, evaluated set") if DIFFICULTY not in by_attribute else (DIFFICULTY, "evaluated set")
    )
    labelled_sets = {
        set_name if name == DIFFICULTY else f"{name}, {set_name}": (name, set_name, statistics)
        for name, sets in by_attribute.items()
        for set_name, statistics in sets.items()
    }
    tables = {label: build_difficulty_table(*entry) for label, entry in labelled_sets.items()}
    correlations = build_correlation_table(
        "spearman_depth_difficulty",
        f"depth, {attribute}",
        within,
        {label: statistics.get("spearman", {}) for label, (_, _, statistics) in labelled_sets.items()},
    )
    html = fill(
        "difficulty",
        unit=get_run_unit(files),
        attribute=attribute,
        figure=figure,
        correlations=correlations,
        tables=tables,
    )
    return Section("Depth and difficulty", "difficulty", html, [figure], [correlations, *tables.values()])


def get_attribute_statistics(halting: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return depth statistics by attribute value for every evaluated set.

    If the data have no attributes, `difficulty` is the only one.
    """
    sets = _get_sets(halting, "attributes")
    if not sets:
        return {DIFFICULTY: statistics} if (statistics := get_difficulty_sets(halting)) else {}
    names = dict.fromkeys(name for attributes in sets.values() for name in attributes)
    return {name: {key: statistics[name] for key, statistics in sets.items() if name in statistics} for name in names}


def get_difficulty_sets(halting: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return depth statistics by difficulty, for those evaluated sets whose examples have a difficulty.

    The set that selects the model comes first.
    """
    return {name: statistics for name, statistics in _get_sets(halting, DIFFICULTY).items() if statistics["rows"]}


def _get_sets(halting: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    summaries = {str(halting.get("set", "all")): halting, **halting.get("further_sets", {})}
    return {name: summary[key] for name, summary in summaries.items() if summary.get(key)}


def get_difficulty_curves(sets: Mapping[str, Mapping[str, Any]], key: str) -> Curves:
    """Return curves of mean depth or accuracy over difficulty (or an attribute), one per evaluated set."""
    curves = [
        (name, [(_get_x(row), row[key]) for row in statistics["rows"] if key in row])
        for name, statistics in sets.items()
    ]
    return [(name, points) for name, points in curves if points]


def _get_rival_accuracies(files: RunFiles) -> Curves:
    """Return curves of accuracy over difficulty for fixed-depth networks of equal compute."""
    rows = [row for row in files.of(RIVALS).get("rows", []) if row["kind"] != "adaptive"]
    return [
        (f"{name}, {row['kind']} {get_depth(row)}", points)
        for row in rows
        for name, points in get_difficulty_curves(
            {name: {"rows": set_rows} for name, set_rows in row.get("difficulty", {}).items()}, "accuracy"
        )
    ]


def _get_x(row: Mapping[str, Any]) -> float:
    """Return the x coordinate of a table row: its attribute value or its difficulty."""
    value: float = row["value"] if "value" in row else row[DIFFICULTY]
    return value


def _build_panels(
    name: str, sets: Mapping[str, Mapping[str, Any]], halting: Mapping[str, Any], rivals: Curves
) -> list[Panel]:
    means, accuracies = get_difficulty_curves(sets, "mean"), get_difficulty_curves(sets, "accuracy")
    x_values = [x for _, points in means for x, _ in points]
    span = (min(x_values) - 0.5, max(x_values) + 0.5)
    x = Axis(name, span, ticks(*span, count=8, whole=True), start=min(x_values))
    y = build_depth_axis("mean depth (updates)", halting["max_depth"], find_first_depth(halting))
    panels = [Panel(f"Mean depth by {name}", Lines(means), x, y, f"Mean depth of {halting['unit']}s by {name}")]
    if accuracies:
        share = Axis("accuracy", (0, 1.03), percent=True)
        panels.append(Panel(f"Accuracy by {name}", Lines([*accuracies, *rivals]), x, share))
    return panels


def build_difficulty_table(name: str, set_name: str, statistics: Mapping[str, Any]) -> Table:
    """Build the table of depth and accuracy for each difficulty or attribute range of one set."""
    ranges = [Column("range", name, where="view"), *(Column(key, where="file") for key in ("from", "to"))]
    columns = [
        *([Column(DIFFICULTY)] if name == DIFFICULTY else ranges),
        Column("n"),
        Column("mean", "mean depth", make_number_format(2)),
        Column("std", "sd", make_number_format(2)),
        Column("p10"),
        Column("p90"),
        Column("accuracy", "accuracy", percent),
        Column("accuracy_n", "n predicted"),
    ]
    rows = [{"range": _format_range(row), **row} if "value" in row else row for row in statistics["rows"]]
    return Table(f"{name}_{set_name}", columns, rows)


def _format_range(row: Mapping[str, Any]) -> str:
    return str(row["from"]) if row["from"] == row["to"] else f"{row['from']} to {row['to']}"


def build_correlation_table(
    name: str, variables: str, within: str, correlations: Mapping[str, Mapping[str, Any]]
) -> Table:
    """Build the table of rank correlations with their intervals; undefined ones appear as missing."""
    columns = [
        Column("group", within, text, "text"),
        Column("value", f"Spearman ({variables})", signed),
        Column("interval", "95 % interval", interval, where="view"),
        *(Column(key, where="file") for key in ("low", "high")),
        Column("n"),
    ]
    rows = [
        {"group": group, **row, **({"interval": (row["low"], row["high"])} if row else {})}
        for group, row in correlations.items()
    ]
    return Table(name, columns, rows)


def format_rival_difficulty(comparison: Mapping[str, Any]) -> str:
    """Format depth and accuracy by difficulty of an adaptive run next to the accuracy of its matched baselines.

    Args:
        comparison: Contents of rivals.json. Without difficulty, the text is empty.
    """
    adaptive, *baselines = comparison["rows"]
    accuracies = [
        {
            (name, row[DIFFICULTY]): row.get("accuracy")
            for name, rows in baseline.get("difficulty", {}).items()
            for row in rows
        }
        for baseline in baselines
    ]
    rows = [
        {"set": name, **row}
        | {f"baseline_{number}": accuracy.get((name, row[DIFFICULTY])) for number, accuracy in enumerate(accuracies)}
        for name, set_rows in adaptive.get("difficulty", {}).items()
        for row in set_rows
        if "accuracy" in row
    ]
    columns = [
        Column("set", "set", text, "text"),
        Column("difficulty"),
        Column("n"),
        Column("mean", "depth", make_number_format(2)),
        Column("accuracy", "accuracy", percent),
        *(
            Column(f"baseline_{number}", f"of {row['kind']} {get_depth(row)}", percent)
            for number, row in enumerate(baselines)
        ),
    ]
    return to_text(Table("difficulty", columns, rows)) if rows else ""


SECTIONS = (SectionEntry(60, difficulty),)
