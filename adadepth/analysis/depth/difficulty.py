"""Depth and accuracy by difficulty, for data sets that know how much computing a unit needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.files import RunFiles, run_unit
from adadepth.analysis.measure.depths import first_depth
from adadepth.analysis.render.figure import Axis, Curves, Figure, Lines, Panel, depth_axis, ticks
from adadepth.analysis.render.formats import interval, percent, rounded, signed
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.render.table import Column, Table, as_text, text


def difficulty(files: RunFiles) -> Section | None:
    """Curves, correlations and tables of every evaluated set."""
    sets = difficulty_sets(files.halting)
    if not sets:
        return None
    figure = Figure("difficulty", _panels(files.halting))
    tables = {name: difficulty_table(name, found) for name, found in sets.items()}
    correlations = correlation_table("spearman_depth_difficulty", "depth, difficulty", "evaluated set", {
        name: found.get("spearman", {}) for name, found in sets.items()
    })  # fmt: skip
    html = fill("difficulty", unit=run_unit(files), figure=figure, correlations=correlations, tables=tables)
    return Section("Depth and difficulty", "difficulty", html, [figure], [correlations, *tables.values()])


def difficulty_sets(halting: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is known of difficulty by name of the evaluated set, the selecting one first."""
    found = {str(halting.get("set", "all")): halting.get("difficulty")}
    found |= {name: other.get("difficulty") for name, other in halting.get("further_sets", {}).items()}
    return {name: described for name, described in found.items() if described and described["rows"]}


def difficulty_curves(halting: Mapping[str, Any], key: str) -> Curves:
    """A curve of `mean` or `accuracy` over difficulty for every set that has one."""
    sets = difficulty_sets(halting)
    curves = [(name, [(row["difficulty"], row[key]) for row in found["rows"] if key in row])
              for name, found in sets.items()]  # fmt: skip
    return [(name, points) for name, points in curves if points]


def _panels(halting: Mapping[str, Any]) -> list[Panel]:
    means, accuracies = difficulty_curves(halting, "mean"), difficulty_curves(halting, "accuracy")
    known = [x for _, points in means for x, _ in points]
    span = (min(known) - 0.5, max(known) + 0.5)
    x = Axis("difficulty", span, ticks(*span, count=8, whole=True), start=min(known))
    y = depth_axis("mean depth (updates)", halting["max_depth"], first_depth(halting))
    panels = [Panel("Mean depth by difficulty", Lines(means), x, y, f"Mean depth of {halting['unit']}s by difficulty")]
    if accuracies:
        panels.append(Panel("Accuracy by difficulty", Lines(accuracies), x, Axis("accuracy", (0, 1.03), percent=True)))
    return panels


def difficulty_table(name: str, found: Mapping[str, Any]) -> Table:
    """Depth and accuracy of one set, a row a difficulty."""
    columns = [
        Column("difficulty"), Column("n"), Column("mean", "mean depth", rounded(2)), Column("std", "sd", rounded(2)),
        Column("p10"), Column("p90"), Column("accuracy", "accuracy", percent), Column("accuracy_n", "n predicted"),
    ]  # fmt: skip
    return Table(f"difficulty_{name}", columns, found["rows"])


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
