"""Tables of what probes of every state and layer reach."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadepth.measure.probes import FEWEST_EXAMPLES
from adadepth.report.figure import Axis, Figure, Lines, Panel, Ranges, Span, depth_axis, with_air
from adadepth.report.run_files import PROBES, RunFiles, write_json
from adadepth.report.section import Placed, Section, fill
from adadepth.report.table import Column, Table, as_csv, as_text, percent, text
from adadepth.system.files import write_atomic

_READOUTS = {"first": "first token", "mean": "mean of the tokens"}


def state_name(row: Mapping[str, Any]) -> str:
    """What a row's states are."""
    if row["update"] is None:
        return "final state"
    return f"update {row['update']}" if row["update"] else "before all"


def probe_table(name: str, found: Mapping[str, Any]) -> Table:
    """What is known after each update, by readout: accuracy and what the update added, with 95 % intervals.

    Args:
        name: Of the set.
        found: What probes.json holds of it.
    """
    metrics = found["rows"][0]["metrics"]
    columns = [
        Column("read", "read", text, "text", where="view"),
        Column("state", "state", text, "text", where="view"),
        *(Column(key, write=text, kind="text", where="file") for key in ("readout", "update")),
        Column("accuracy", "accuracy", percent),
        Column("interval", "95 % interval", _shares, where="view"),
        Column("gain", "added", _points),
        Column("gain_interval", "95 % interval", _two_points, where="view"),
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
            "state": state_name(row),
            "interval": (row["low"], row["high"]),
            **({"gain_interval": (row["gain_low"], row["gain_high"])} if "gain" in row else {}),
        }
        for row in found["rows"]
    ]
    most = found["majority"]
    always = {"read": f"always {most['class']}", "readout": "majority", **most, "interval": (most["low"], most["high"])}
    return Table(f"probes_{name}", columns, [*rows, always])


def accuracy_by_difficulty(name: str, found: Mapping[str, Any]) -> Table | None:
    """Accuracy by difficulty, a column a state; None where the data know no difficulty.

    Args:
        name: Of the set.
        found: What probes.json holds of it.
    """
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for row in found["rows"]:
        for part in row.get("by_difficulty", ()):
            about = {"read": _READOUTS[row["readout"]], "difficulty": part["difficulty"], "n": part["n"]}
            key = row["readout"], part["difficulty"]
            rows.setdefault(key, about)[state_name(row)] = part["accuracy"]
    if not rows:
        return None
    states = dict.fromkeys(state_name(row) for row in found["rows"])
    columns = [
        Column("read", "read", text, "text"),
        Column("difficulty"),
        Column("n"),
        *(Column(state, write=percent) for state in states),
    ]
    return Table(f"probes_by_difficulty_{name}", columns, list(rows.values()))


def probes_text(found: Mapping[str, Any]) -> str:
    """What each update adds as text.

    Args:
        found: What probes.json holds.
    """
    lines = [
        f"linear probes of the states after every update: {found['examples']['train']:,} training examples, "
        f"{found['classes']} classes"
    ]
    for name, of_set in found["sets"].items():
        tables = [probe_table(name, of_set), accuracy_by_difficulty(name, of_set)]
        lines += [f"{name}: {of_set['n']:,} examples", *(as_text(table) for table in tables if table is not None)]
    return "\n\n".join(lines)


def flat_accuracies(found: Mapping[str, Any]) -> dict[str, float]:
    """Accuracies by `probe/SET/READOUT/UPDATE`, for run.json and trackers."""
    return {
        f"probe/{name}/{row['readout']}/{'final' if row['update'] is None else row['update']}": row["accuracy"]
        for name, of_set in found["sets"].items()
        for row in of_set["rows"]
    }


def _shares(found: tuple[float, float]) -> str:
    return f"{percent(found[0])} to {percent(found[1])}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _two_points(found: tuple[float, float]) -> str:
    return f"{_points(found[0])} to {_points(found[1])}"


def write_probes(directory: Path, found: Mapping[str, Any]) -> None:
    """Write probes.json and, for every set, probes_SET.csv: linear probes of the states after every update."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / PROBES, found)
    for name, of_set in found["sets"].items():
        write_atomic(directory / f"probes_{name}.csv", as_csv(probe_table(name, of_set)))


def probes(files: RunFiles) -> Section | None:
    """Accuracy of linear probes after every update, on every set that chose nothing."""
    if not files.of(PROBES):
        return None
    found = files.of(PROBES)
    sets = [
        {
            "name": name,
            "n": of_set["n"],
            "figure": Figure(f"probes_{name}", _panels(of_set)),
            "table": probe_table(name, of_set),
            "difficulty": accuracy_by_difficulty(name, of_set),
        }
        for name, of_set in found["sets"].items()
    ]
    tables = [table for each in sets for table in (each["table"], each["difficulty"]) if table is not None]
    html = fill("probes", found=found, sets=sets, fewest=FEWEST_EXAMPLES)
    of = "n = " + ", ".join(f"{each['n']:,} sentences of {each['name']}" for each in sets)
    return Section("What each update adds", "probes", html, [each["figure"] for each in sets], tables, of=of)


def _panels(found: Mapping[str, Any]) -> list[Panel]:
    """The curves of both readouts, and every accuracy with its interval, on one range of accuracies."""
    majority, rows = found["majority"], found["rows"]
    span = with_air([row[end] for row in (*rows, majority) for end in ("low", "high")])
    of = {readout: [row for row in rows if row["readout"] == readout] for readout in _READOUTS}
    last = max(row["update"] or 0 for row in rows)
    curves = [
        (_READOUTS[readout], [(row["update"], row["accuracy"]) for row in each if row["update"] is not None])
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
    return Panel(f"Read: {_READOUTS[readout]}", Ranges(drawn), x, y)


SECTIONS = (Placed(10, probes, alone=PROBES, subtitle="Linear probes"),)
