"""The tables of a comparison: settings, verdicts, figures and depths of groups of runs side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adadepth.analysis.comparisons.groups import Comparison, Group, seed, written
from adadepth.analysis.files import RunFiles, cut_short, run_unit
from adadepth.analysis.measure.seeds import describe
from adadepth.analysis.render.formats import clock, is_number, percent
from adadepth.analysis.render.table import Column, Table, text
from adadepth.analysis.units import words
from adadepth.analysis.verdict.cost import NEEDED
from adadepth.analysis.verdict.finding import ANSWERS, QUESTIONS, as_json
from adadepth.analysis.verdict.section import verdict

Spread = Mapping[str, Any]  # `n`, `mean`, and of several values `std`
Cells = Mapping[str, Mapping[str, Any]]  # by row and column


def settings_table(comparison: Comparison, keys: Sequence[str]) -> Table:
    """What the groups set, and how many runs they have."""
    cells = {
        group.label: {**{key: written(group.settings[key]) for key in keys}, "runs": str(len(group.runs))}
        for group in comparison.groups
    }
    return _side_by_side("settings", "setting", cells, lambda heading: [Column(heading, heading, text, "text")])


def figure_table(entries: Sequence[Group], names: Sequence[str]) -> Table:
    """Final metrics by group: mean, sample standard deviation and n."""
    cells = {entry.label: {name: entry.figure(name) for name in names} for entry in entries}
    return _side_by_side("final_figures", "metric", cells, _spread_columns)


def _side_by_side(name: str, corner: str, cells: Cells, columns_of: Callable[[str], list[Column]]) -> Table:
    """A row a group, or a column a group where these are fewer than the figures, which then stand below each other."""
    headings = list(next(iter(cells.values())))
    if len(headings) > len(cells):
        cells = {heading: {label: cells[label][heading] for label in cells} for heading in headings}
    else:
        corner = "run"
    return _table(name, corner, cells, columns_of)


def _table(name: str, corner: str, cells: Cells, columns_of: Callable[[str], list[Column]]) -> Table:
    headings = next(iter(cells.values()))
    columns = [Column(corner, corner, text, "text"), *(column for each in headings for column in columns_of(each))]
    return Table(name, columns, [{corner: label, **_parts(of)} for label, of in cells.items()])


def _spread_columns(heading: str) -> list[Column]:
    """A figure of several runs: one column for people, three for programs."""
    parts = [Column(f"{heading}/{part}", where="file") for part in _PARTS]
    return [Column(heading, heading, spread_text, where="view"), *parts]


_PARTS = ("mean", "std", "n")


def _parts(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Cells, and those of the columns for programs."""
    spreads = ((heading, found) for heading, found in cells.items() if isinstance(found, Mapping))
    return {**cells, **{f"{heading}/{part}": found.get(part) for heading, found in spreads for part in _PARTS}}


def spread_text(found: Spread) -> str:
    """Mean and sample standard deviation; of a single value it alone."""
    digits = 4 if abs(found["mean"]) < 10 else 2 if abs(found["mean"]) < 1000 else 0
    return " ± ".join(f"{found[key]:,.{digits}f}" for key in ("mean", "std") if key in found)


# ---- verdicts


def verdict_table(comparison: Comparison) -> Table:
    """The answers of every group, and of how many of its runs."""
    asked = [name for name in ("target", "adapts", "worth")
             if name != "target" or any(name in verdict_of(run) for run in comparison.runs)]  # fmt: skip
    columns = [Column("run", "run", text, "text"),
               *(Column(name, QUESTIONS[name], text, "text") for name in asked),
               Column("cost", QUESTIONS["cost"], _work_text, where="view"),
               *(Column(f"cost/{part}", where="file") for part in _PARTS)]  # fmt: skip
    rows = [
        _parts({"run": entry.label, **{name: _answers(entry, name) for name in asked},
                "cost": _cost(entry)})
        for entry in comparison.entries
    ]  # fmt: skip
    return Table("verdicts", columns, rows)


def _cost(entry: Group) -> Spread | None:
    """The work that the depths need, as the verdicts of the runs have it, and of what it is a share."""
    found = {str(seed(run)): verdict_of(run).get("cost", {}).get("figures", {}).get(NEEDED) for run in entry.runs}
    values = {name: value for name, value in found.items() if value is not None}
    return {**describe(values), "of": words(run_unit(entry.runs[0])).of_full} if values else None


def _work_text(found: Spread) -> str:
    return " ± ".join(percent(found[key]) for key in ("mean", "std") if key in found) + f" of {found['of']}"


def verdict_of(run: RunFiles) -> Mapping[str, Any]:
    """What the files of a run answer, as its page does; where they do not any more, the verdict that it ended with."""
    kept = run.run.get("verdict")
    return as_json(verdict(run)) or (kept if isinstance(kept, dict) else {})


def _answers(entry: Group, name: str) -> str | None:
    """The answers to a question, the commonest first, and of several runs how many gave each."""
    given = [verdict_of(run).get(name, {}).get("answer") for run in entry.runs]
    found = Counter(ANSWERS[answer] for answer in given if answer in ANSWERS)
    if len(entry.runs) == 1:
        return next(iter(found), None)
    return ", ".join(f"{answer} ({count} of {len(entry.runs)})" for answer, count in found.most_common()) or None


# ---- depth by class


def class_depths(entries: Sequence[Group]) -> tuple[dict[str, dict[str, Spread]], list[str]]:
    """By class and group the mean depth, of classes that all groups with any have; and the names of the others.

    Of several seeds it is the mean of their means, with the sample deviation between them.
    """
    of_entries = {entry.label: found for entry in entries if (found := _depths(entry))}
    every = dict.fromkeys(name for found in of_entries.values() for name in found)
    shared = [name for name in every if all(name in found for found in of_entries.values())]
    others = [name for name in every if name not in shared]
    return {name: {label: found[name] for label, found in of_entries.items()} for name in shared}, others


def _depths(entry: Group) -> dict[str, Spread]:
    values: dict[str, dict[str, float]] = {}
    for run in entry.runs:
        for name, described in run.halting.get("classes", {}).items():
            if is_number(described.get("mean")):
                values.setdefault(name, {})[str(seed(run))] = described["mean"]
    return {name: describe(found) for name, found in values.items()}


def class_table(depths: Cells) -> Table:
    """Mean depth by class and group, from `class_depths`."""
    return _table("depth_by_class", "class", depths, _spread_columns)


# ---- runs


def run_table(comparison: Comparison) -> Table:
    """Every run: where it is, and how it went."""
    columns = [
        Column("name", "run", text, "text"), Column("seed", "seed", text), Column("status", "status", text, "text"),
        Column("wall_time_s", "wall time", clock), Column("parameters"), Column("started", "started", text, "text"),
        Column("folder", "folder", text, "text"),
    ]  # fmt: skip
    rows = [
        {**{key: run.run.get(key) for key in ("wall_time_s", "parameters", "started")},
         "status": "cut short" if cut_short(run) else run.run.get("status"), "name": entry.label, "seed": seed(run),
         "folder": str(run.directory)}
        for entry in comparison.entries
        for run in entry.runs
    ]  # fmt: skip
    return Table("runs", columns, rows)
