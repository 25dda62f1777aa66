"""The section of the report on what each update adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.files import RunFiles
from adadepth.analysis.probes.measure import FEWEST
from adadepth.analysis.probes.tables import READOUTS, difficulty_table, probe_table, state_name
from adadepth.analysis.render.figure import Axis, Figure, Lines, Panel, Ranges, Span, depth_axis, padded
from adadepth.analysis.render.section import Section, fill


def probes(files: RunFiles) -> Section | None:
    """Accuracy of linear probes after every update, on every set that chose nothing."""
    if not files.probes:
        return None
    found = files.probes
    sets = [
        {
            "name": name, "n": of_set["n"], "figure": Figure(f"probes_{name}", _panels(of_set)),
            "table": probe_table(name, of_set), "difficulty": difficulty_table(name, of_set),
        }
        for name, of_set in found["sets"].items()
    ]  # fmt: skip
    tables = [table for each in sets for table in (each["table"], each["difficulty"]) if table is not None]
    html = fill("probes", found=found, sets=sets, fewest=FEWEST)
    of = "n = " + ", ".join(f"{each['n']:,} sentences of {each['name']}" for each in sets)
    return Section("What each update adds", "probes", html, [each["figure"] for each in sets], tables, of=of)


def _panels(found: Mapping[str, Any]) -> list[Panel]:
    """The curves of both readouts, and every accuracy with its interval, on one range of accuracies."""
    majority, rows = found["majority"], found["rows"]
    span = padded([row[end] for row in (*rows, majority) for end in ("low", "high")])
    of = {readout: [row for row in rows if row["readout"] == readout] for readout in READOUTS}
    last = max(row["update"] or 0 for row in rows)
    curves = [
        (READOUTS[readout], [(row["update"], row["accuracy"]) for row in each if row["update"] is not None])
        for readout, each in of.items()
    ]
    always = (f"always {majority['class']}", [(0, majority["accuracy"]), (last, majority["accuracy"])])
    x, y = depth_axis("updates", last, 0), Axis("accuracy of a linear probe", span, percent=True)
    panels = [Panel("What is known after each update", Lines([*curves, always]), x, y)]
    return [*panels, *(_intervals(readout, each, majority, span) for readout, each in of.items())]


def _intervals(readout: str, rows: list[dict[str, Any]], majority: Mapping[str, Any], span: Span) -> Panel:
    names = [*map(state_name, rows), f"always {majority['class']}"]
    drawn = [(row["low"], row["accuracy"], row["high"]) for row in (*rows, majority)]
    y = Axis("", (len(names) - 0.4, -0.6), range(len(names)), names)
    x = Axis("accuracy with its 95 % interval", span, percent=True)
    return Panel(f"Read: {READOUTS[readout]}", Ranges(drawn), x, y)
