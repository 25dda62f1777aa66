"""Report section on texts longer than in training: accuracy by length and loops, at T(n) loops and by the exit rule."""

from __future__ import annotations

from typing import Any

from adadepth.report.exits import format_set_sizes
from adadepth.report.figure import Axis, Figure, Heat, Lines, Panel, build_depth_axis
from adadepth.report.run_files import EXITS, RunFiles
from adadepth.report.section import Section, SectionEntry, fill
from adadepth.report.table import Column, Table, make_number_format, percent


def build_lengths_section(files: RunFiles) -> Section | None:
    """Build the section on accuracy by length, or return None if the texts have no number of loops."""
    rows = list_length_rows(files)
    if not rows:
        return None
    figure, table = Figure("lengths", _build_panels(rows)), build_length_table(rows)
    html = fill("lengths", figure=figure, table=table)
    sizes = format_set_sizes(files.of(EXITS)["sets"])
    return Section("Length and loops", "lengths", html, [figure], [table], of=sizes)


def list_length_rows(files: RunFiles) -> list[dict[str, Any]]:
    """Return the rows of `summarise_lengths` of all evaluated sets, the shortest texts first.

    Each has the accuracy at T(n) loops, `given_accuracy`, if at least as many ran, and the best one, `best_accuracy` at
    `best_loops`. A length in several sets has the row of the first one.
    """
    rows: dict[int, dict[str, Any]] = {}
    for summary in files.of(EXITS).get("sets", {}).values():
        for row in summary.get("lengths", ()):
            accuracy, loops = row["accuracy"], row["loops"]
            best = max(accuracy)
            at_loops = {"given_accuracy": accuracy[loops - 1]} if loops <= len(accuracy) else {}
            at_best = {"best_accuracy": best, "best_loops": accuracy.index(best) + 1}
            rows.setdefault(loops, {**row, **at_loops, **at_best})
    return [rows[loops] for loops in sorted(rows)]


def build_length_table(rows: list[dict[str, Any]]) -> Table:
    """Build the table of accuracy by length: with T(n) loops, by the exit rule, and at the best number of loops."""
    columns = [
        Column("loops", "T(n)"),
        Column("n", "texts"),
        Column("given_accuracy", "right at T(n)", percent),
        Column("rule_accuracy", "by exit rule", percent),
        Column("rule_loops", "its loops", make_number_format(1)),
        Column("best_accuracy", "best", percent),
        Column("best_loops", "at loop"),
    ]
    return Table("lengths", columns, rows)


def _build_panels(rows: list[dict[str, Any]]) -> list[Panel]:
    """Build the heat map of accuracy by length and loops, and the curves at T(n) and at the exits of the rule."""
    count, most = len(rows), len(rows[0]["accuracy"])
    names = Axis("T(n) of the text", (-0.5, count - 0.5), range(count), [str(row["loops"]) for row in rows])
    share = Axis("texts right", (0, 1.03), percent=True)
    curves = [
        (title, [(x, row[key]) for x, row in enumerate(rows) if key in row])
        for title, key in (("T(n) loops (oracle)", "given_accuracy"), ("exit rule", "rule_accuracy"))
    ]
    loops = [
        ("T(n)", [(x, float(row["loops"])) for x, row in enumerate(rows)]),
        ("exit rule, mean", [(x, row["rule_loops"]) for x, row in enumerate(rows)]),
    ]
    heat = Heat([row["accuracy"] for row in rows], "texts right", 0, 1)
    depth = build_depth_axis("loops", most)
    return [
        Panel("Accuracy by length and loops", heat, names, depth, "Share of right texts by length and loops", 1.4),
        Panel(
            "Accuracy by length", Lines(curves), names, share, "Share of right texts by length, oracle and exit rule"
        ),
        Panel("Loops by length", Lines(loops), names, depth, "T(n), and mean loops of the exit rule, by length"),
    ]


SECTIONS = (SectionEntry(175, build_lengths_section),)
