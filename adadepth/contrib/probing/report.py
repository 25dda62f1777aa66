"""Accuracy of linear probes of every hidden state: tables, text, files and report section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadepth.contrib.probing.linear_probes import FEWEST_EXAMPLES
from adadepth.report.figure import Axis, Figure, Lines, Panel, Ranges, Span, build_depth_axis, pad_range
from adadepth.report.run_files import RunFiles, write_json
from adadepth.report.section import Section, SectionEntry, fill
from adadepth.report.table import Column, Table, percent, text, to_csv, to_text
from adadepth.runtime.files import write_atomic

PROBES = "probes.json"
_READOUTS = {"first": "first token", "mean": "mean of the tokens"}


def format_state_name(row: Mapping[str, Any]) -> str:
    """Return the display name of the hidden state in a row of probe results."""
    if row["update"] is None:
        return "final state"
    return f"update {row['update']}" if row["update"] else "before all"


def build_probe_table(name: str, set_probes: Mapping[str, Any]) -> Table:
    """Build the table of accuracy after each update and the gain of the update, with 95 % intervals, by readout.

    Args:
        name: Name of the set.
        set_probes: Contents of probes.json for the set.
    """
    metrics = set_probes["rows"][0]["metrics"]
    columns = [
        Column("read", "read", text, "text", where="view"),
        Column("state", "state", text, "text", where="view"),
        *(Column(key, write=text, kind="text", where="file") for key in ("readout", "update")),
        Column("accuracy", "accuracy", percent),
        Column("interval", "95 % interval", _format_share_interval, where="view"),
        Column("gain", "added", _format_points),
        Column("gain_interval", "95 % interval", _format_points_interval, where="view"),
        *(Column(key, where="file") for key in ("low", "high", "gain_low", "gain_high")),
        Column("changed", "tokens it changed", percent),
        *(Column(metric) for metric in metrics if metric not in ("accuracy", "score")),
        *(Column(key, where="file") for key in ("train", "validation")),
        Column("strength", "C", lambda value: f"{value:g}"),
        Column("converged", where="file"),
    ]
    rows = [
        {
            **row["metrics"],
            **row,
            "read": _READOUTS[row["readout"]],
            "state": format_state_name(row),
            "interval": (row["low"], row["high"]),
            **({"gain_interval": (row["gain_low"], row["gain_high"])} if "gain" in row else {}),
        }
        for row in set_probes["rows"]
    ]
    majority = set_probes["majority"]
    always = {
        "read": f"always {majority['class']}",
        "readout": "majority",
        **majority,
        "interval": (majority["low"], majority["high"]),
    }
    return Table(f"probes_{name}", columns, [*rows, always])


def build_probe_difficulty_table(name: str, set_probes: Mapping[str, Any]) -> Table | None:
    """Build the table of accuracy by difficulty, with one column per state, or return None if difficulty is unknown.

    Args:
        name: Name of the set.
        set_probes: Contents of probes.json for the set.
    """
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for row in set_probes["rows"]:
        for part in row.get("by_difficulty", ()):
            row_head = {"read": _READOUTS[row["readout"]], "difficulty": part["difficulty"], "n": part["n"]}
            key = row["readout"], part["difficulty"]
            rows.setdefault(key, row_head)[format_state_name(row)] = part["accuracy"]
    if not rows:
        return None
    states = dict.fromkeys(format_state_name(row) for row in set_probes["rows"])
    columns = [
        Column("read", "read", text, "text"),
        Column("difficulty"),
        Column("n"),
        *(Column(state, write=percent) for state in states),
    ]
    return Table(f"probes_by_difficulty_{name}", columns, list(rows.values()))


def format_probes(results: Mapping[str, Any]) -> str:
    """Format the accuracy of the probes, and the gain of each update, as text.

    Args:
        results: Contents of probes.json.
    """
    lines = [
        f"linear probes of the states after every update: {results['examples']['train']:,} training sentences, "
        f"{results['classes']} classes"
    ]
    for name, set_probes in results["sets"].items():
        tables = [build_probe_table(name, set_probes), build_probe_difficulty_table(name, set_probes)]
        lines += [f"{name}: {set_probes['n']:,} sentences", *(to_text(table) for table in tables if table is not None)]
    return "\n\n".join(lines)


def flatten_accuracies(results: Mapping[str, Any]) -> dict[str, float]:
    """Return accuracies under the names `probe/SET/READOUT/UPDATE`, for run.json and trackers."""
    return {
        f"probe/{name}/{row['readout']}/{'final' if row['update'] is None else row['update']}": row["accuracy"]
        for name, set_probes in results["sets"].items()
        for row in set_probes["rows"]
    }


def _format_share_interval(ends: tuple[float, float]) -> str:
    return f"{percent(ends[0])} to {percent(ends[1])}"


def _format_points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _format_points_interval(ends: tuple[float, float]) -> str:
    return f"{_format_points(ends[0])} to {_format_points(ends[1])}"


def write_probes(directory: Path, results: Mapping[str, Any]) -> None:
    """Write probes.json and, for every set, probes_SET.csv, with linear probes of the states after every update."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / PROBES, results)
    for name, set_probes in results["sets"].items():
        write_atomic(directory / f"probes_{name}.csv", to_csv(build_probe_table(name, set_probes)))


def probes(files: RunFiles) -> Section | None:
    """Build the report section on the accuracy of linear probes after every update.

    It has every set that was not used for selection.
    """
    if not files.of(PROBES):
        return None
    results = files.of(PROBES)
    sets = [
        {
            "name": name,
            "n": set_probes["n"],
            "figure": Figure(f"probes_{name}", _build_panels(set_probes)),
            "table": build_probe_table(name, set_probes),
            "difficulty": build_probe_difficulty_table(name, set_probes),
        }
        for name, set_probes in results["sets"].items()
    ]
    tables = [table for entry in sets for table in (entry["table"], entry["difficulty"]) if table is not None]
    html = fill("probes", "adadepth.contrib.probing", probes=results, sets=sets, fewest=FEWEST_EXAMPLES)
    sample = "n = " + ", ".join(f"{entry['n']:,} sentences of {entry['name']}" for entry in sets)
    return Section(
        "Linear probes after each update", "probes", html, [entry["figure"] for entry in sets], tables, of=sample
    )


def _build_panels(set_probes: Mapping[str, Any]) -> list[Panel]:
    """Build the curves of both readouts, and all accuracies with their intervals, on a shared accuracy axis."""
    majority, rows = set_probes["majority"], set_probes["rows"]
    span = pad_range([row[end] for row in (*rows, majority) for end in ("low", "high")])
    by_readout = {readout: [row for row in rows if row["readout"] == readout] for readout in _READOUTS}
    last = max(row["update"] or 0 for row in rows)
    curves = [
        (_READOUTS[readout], [(row["update"], row["accuracy"]) for row in readout_rows if row["update"] is not None])
        for readout, readout_rows in by_readout.items()
    ]
    always = (f"always {majority['class']}", [(0, majority["accuracy"]), (last, majority["accuracy"])])
    x, y = build_depth_axis("updates", last, 0), Axis("accuracy of a linear probe", span, percent=True)
    panels = [Panel("Probe accuracy after each update", Lines([*curves, always]), x, y)]
    return [
        *panels,
        *(_build_interval_panel(readout, readout_rows, majority, span) for readout, readout_rows in by_readout.items()),
    ]


def _build_interval_panel(readout: str, rows: list[dict[str, Any]], majority: Mapping[str, Any], span: Span) -> Panel:
    names = [*map(format_state_name, rows), f"always {majority['class']}"]
    ranges = [(row["low"], row["accuracy"], row["high"]) for row in (*rows, majority)]
    y = Axis("", (len(names) - 0.4, -0.6), range(len(names)), names)
    x = Axis("accuracy with its 95 % interval", span, percent=True)
    return Panel(f"Read: {_READOUTS[readout]}", Ranges(ranges), x, y)


SECTION = SectionEntry(10, probes, alone=PROBES, subtitle="Linear probes")
