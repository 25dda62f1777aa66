"""Depth and accuracy by difficulty, for data sets that know how much computing a unit needs; or by what else they know.

Of puzzles there are attributes, of which difficulty is one or follows from one: they are told instead of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.measure.names import first_depth
from adadepth.report.figure import Axis, Curves, Figure, Lines, Panel, depth_axis, ticks
from adadepth.report.run_files import RunFiles, run_unit
from adadepth.report.section import Section, fill
from adadepth.report.table import Column, Table, as_text, interval, percent, rounded, signed, text

DIFFICULTY = "difficulty"


def difficulty(files: RunFiles) -> Section | None:
    """Curves, correlations and tables of every evaluated set."""
    known = known_of(files.halting)
    if not known:
        return None
    rivals = _rival_accuracies(files) if DIFFICULTY in known else []
    panels = [panel for name, sets in known.items() for panel in _panels(name, sets, files.halting, rivals)]
    figure = Figure("difficulty", panels)
    of, within = ("attribute", "attribute, evaluated set") if DIFFICULTY not in known else (DIFFICULTY, "evaluated set")
    told = {
        set_name if name == DIFFICULTY else f"{name}, {set_name}": (name, set_name, found)
        for name, sets in known.items()
        for set_name, found in sets.items()
    }
    tables = {label: difficulty_table(*about) for label, about in told.items()}
    correlations = correlation_table("spearman_depth_difficulty", f"depth, {of}", within, {
        label: found.get("spearman", {}) for label, (_, _, found) in told.items()
    })  # fmt: skip
    html = fill(
        "difficulty", unit=run_unit(files), of=of, figure=figure,
        correlations=correlations, tables=tables,
    )  # fmt: skip
    return Section("Depth and difficulty", "difficulty", html, [figure], [correlations, *tables.values()])


def known_of(halting: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """What depth is told by: its name, `difficulty` or an attribute, to what is known of every evaluated set."""
    sets = _sets(halting, "attributes")
    if not sets:
        return {DIFFICULTY: found} if (found := difficulty_sets(halting)) else {}
    names = dict.fromkeys(name for attributes in sets.values() for name in attributes)
    return {name: {key: found[name] for key, found in sets.items() if name in found} for name in names}


def difficulty_sets(halting: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is known of difficulty by name of the evaluated set, the selecting one first."""
    return {name: found for name, found in _sets(halting, DIFFICULTY).items() if found["rows"]}


def _sets(halting: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    found = {str(halting.get("set", "all")): halting, **halting.get("further_sets", {})}
    return {name: told[key] for name, told in found.items() if told.get(key)}


def difficulty_curves(sets: Mapping[str, Mapping[str, Any]], key: str) -> Curves:
    """A curve of `mean` or `accuracy` over difficulty, or an attribute, for every set that has one."""
    curves = [(name, [(_place(row), row[key]) for row in found["rows"] if key in row]) for name, found in sets.items()]
    return [(name, points) for name, points in curves if points]


def _rival_accuracies(files: RunFiles) -> Curves:
    """The accuracy by difficulty of networks of one depth and as much work."""
    rows = [row for row in files.rivals.get("rows", []) if row["kind"] != "adaptive"]
    return [
        (f"{name}, {row['kind']} {row['max_depth']}", points)
        for row in rows
        for name, points in difficulty_curves(
            {name: {"rows": of_set} for name, of_set in row.get("difficulty", {}).items()}, "accuracy"
        )
    ]


def _place(row: Mapping[str, Any]) -> float:
    """Where a row lies on the axis of what it is told by."""
    place: float = row["value"] if "value" in row else row[DIFFICULTY]
    return place


def _panels(
    name: str, sets: Mapping[str, Mapping[str, Any]], halting: Mapping[str, Any], rivals: Curves
) -> list[Panel]:
    means, accuracies = difficulty_curves(sets, "mean"), difficulty_curves(sets, "accuracy")
    known = [x for _, points in means for x, _ in points]
    span = (min(known) - 0.5, max(known) + 0.5)
    x = Axis(name, span, ticks(*span, count=8, whole=True), start=min(known))
    y = depth_axis("mean depth (updates)", halting["max_depth"], first_depth(halting))
    panels = [Panel(f"Mean depth by {name}", Lines(means), x, y, f"Mean depth of {halting['unit']}s by {name}")]
    if accuracies:
        share = Axis("accuracy", (0, 1.03), percent=True)
        panels.append(Panel(f"Accuracy by {name}", Lines([*accuracies, *rivals]), x, share))
    return panels


def difficulty_table(name: str, set_name: str, found: Mapping[str, Any]) -> Table:
    """Depth and accuracy of one set, a row a difficulty, or a value of the attribute of that name, or a range."""
    ranges = [Column("range", name, where="view"), *(Column(key, where="file") for key in ("from", "to"))]
    columns = [
        *([Column(DIFFICULTY)] if name == DIFFICULTY else ranges), Column("n"),
        Column("mean", "mean depth", rounded(2)), Column("std", "sd", rounded(2)), Column("p10"), Column("p90"),
        Column("accuracy", "accuracy", percent), Column("accuracy_n", "n predicted"),
    ]  # fmt: skip
    rows = [{"range": _range(row), **row} if "value" in row else row for row in found["rows"]]
    return Table(f"{name}_{set_name}", columns, rows)


def _range(row: Mapping[str, Any]) -> str:
    return str(row["from"]) if row["from"] == row["to"] else f"{row['from']} to {row['to']}"


def correlation_table(name: str, of: str, within: str, found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Rank correlations with their intervals, by group; one that is not defined is missing."""
    columns = [
        Column("group", within, text, "text"), Column("value", f"Spearman ({of})", signed),
        Column("interval", "95 % bootstrap interval", interval, where="view"),
        *(Column(key, where="file") for key in ("low", "high")), Column("n"),
    ]  # fmt: skip
    rows = [
        {"group": group, **row, **({"interval": (row["low"], row["high"])} if row else {})}
        for group, row in found.items()
    ]
    return Table(name, columns, rows)


def rival_difficulty_text(adaptive: Mapping[str, Any], rival: Mapping[str, Any]) -> str:
    """The depth by difficulty of an adaptive run, and its accuracy beside a rival's, as text.

    Args:
        adaptive: What its halting.json holds; a run that knows no difficulty gives an empty text.
        rival: That of the rival.
    """
    pairs = zip(difficulty_sets(adaptive).items(), difficulty_sets(rival).values(), strict=False)
    rows = [
        {"set": name, **row, "rival": other["accuracy"]}
        for (name, found), others in pairs
        for row, other in zip(found["rows"], others["rows"], strict=False)
        if "accuracy" in row
    ]
    columns = [
        Column("set", "set", text, "text"), Column("difficulty"), Column("n"), Column("mean", "depth", rounded(2)),
        Column("accuracy", "accuracy", percent), Column("rival", "of the rival", percent),
    ]  # fmt: skip
    return as_text(Table("difficulty", columns, rows)) if rows else ""
