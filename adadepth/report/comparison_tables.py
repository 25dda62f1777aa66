"""The tables of a comparison: settings, verdicts, figures and depths of groups of runs side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.measure.names import is_loss, unit_words
from adadepth.report.figure import Axis, Bars, Figure, Lines, Panel, Points
from adadepth.report.groups import Comparison, Group, Parameter, Quality, Search, final, seed, shared_figures, written
from adadepth.report.guard import build_or_leave_out
from adadepth.report.run_files import RunFiles, cut_short, run_unit
from adadepth.report.section import Section, fill
from adadepth.report.seeds import describe_seeds
from adadepth.report.table import Column, Table, clock, is_number, percent, text
from adadepth.report.verdict import NEEDED, verdict
from adadepth.report.worth import ANSWERS, QUESTIONS, as_json

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
    asked = [
        name
        for name in ("target", "adapts", "worth")
        if name != "target" or any(name in verdict_of(run) for run in comparison.runs)
    ]
    columns = [
        Column("run", "run", text, "text"),
        *(Column(name, QUESTIONS[name], text, "text") for name in asked),
        Column("cost", QUESTIONS["cost"], _work_text, where="view"),
        *(Column(f"cost/{part}", where="file") for part in _PARTS),
    ]
    rows = [
        _parts({"run": entry.label, **{name: _answers(entry, name) for name in asked}, "cost": _cost(entry)})
        for entry in comparison.entries
    ]
    return Table("verdicts", columns, rows)


def _cost(entry: Group) -> Spread | None:
    """The work that the depths need, as the verdicts of the runs have it, and of what it is a share."""
    found = {str(seed(run)): verdict_of(run).get("cost", {}).get("figures", {}).get(NEEDED) for run in entry.runs}
    values = {name: value for name, value in found.items() if value is not None}
    return {**describe_seeds(values), "of": unit_words(run_unit(entry.runs[0])).of_full} if values else None


def _work_text(found: Spread) -> str:
    return " ± ".join(percent(found[key]) for key in ("mean", "std") if key in found) + f" of {found['of']}"


def verdict_of(run: RunFiles) -> Mapping[str, Any]:
    """What the files of a run answer, as its page does; where they do not any more, the verdict that it ended with."""
    kept = run.run.get("verdict")
    return as_json(build_or_leave_out(verdict, run, {})) or (kept if isinstance(kept, dict) else {})


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
    return {name: describe_seeds(found) for name, found in values.items()}


def class_depth_table(depths: Cells) -> Table:
    """Mean depth by class and group, from `class_depths`."""
    return _table("depth_by_class", "class", depths, _spread_columns)


# ---- runs


def run_table(comparison: Comparison) -> Table:
    """Every run: where it is, and how it went."""
    columns = [
        Column("name", "run", text, "text"),
        Column("seed", "seed", text),
        Column("status", "status", text, "text"),
        Column("wall_time_s", "wall time", clock),
        Column("parameters"),
        Column("started", "started", text, "text"),
        Column("folder", "folder", text, "text"),
    ]
    rows = []
    for entry in comparison.entries:
        for run in entry.runs:
            told = {key: run.run.get(key) for key in ("wall_time_s", "parameters", "started")}
            status = "cut short" if cut_short(run) else run.run.get("status")
            about = {"name": entry.label, "seed": seed(run), "folder": str(run.directory)}
            rows.append({**told, **about, "status": status})
    return Table("runs", columns, rows)


_MOST = 5


def best(comparison: Comparison, folder: Path) -> Section | None:
    """The best groups by `optimise`; of each the run that is best among its seeds."""
    if (chosen := optimised_quality(comparison)) is None:
        return None
    table = best_table(comparison, chosen)
    html = fill("compared:best", table=table, chosen=chosen, count=len(chosen.best_first(comparison.groups)))
    return Section(f"Best by {chosen.name}", "best", html, tables=[table])


def best_line(comparison: Comparison) -> str | None:
    """The best group in a line, with the folder of its best run; None where nothing is better than another."""
    if (chosen := optimised_quality(comparison)) is None:
        return None
    first = chosen.best_first(comparison.groups)[0]
    return f"best by {chosen.name}: {chosen.of(first):.4f}, {first.label}: {_best_run(first, chosen).directory}"


def optimised_quality(comparison: Comparison) -> Quality | None:
    """What all runs optimise, if it says which is better: not between seeds, nor on other data.

    The name of a metric of an evaluated set says whether less is better; of others, such as a depth, a search does.
    """
    names = {run.config.get("optimise") for run in comparison.runs}
    if len(names) != 1 or len(comparison.groups) < 2 or comparison.other_data:
        return None
    (name,) = names
    if name not in shared_figures(comparison.groups):
        return None
    if comparison.search is not None:
        return Quality(name, comparison.search.less_is_better)
    return Quality(name, is_loss(name)) if name.startswith("eval") else None


def best_table(comparison: Comparison, chosen: Quality) -> Table:
    """A row a group, the best first."""
    columns = [
        Column("run", "run", text, "text"),
        Column("value", chosen.name, text),
        Column("n", "runs"),
        Column("folder", "folder", text, "code"),
        Column("command", "command", text, "code"),
    ]
    rows = []
    for group in chosen.best_first(comparison.groups)[:_MOST]:
        run = _best_run(group, chosen)
        told = {"run": group.label, "value": spread_text(group.figure(chosen.name) or {}), "n": len(group.runs)}
        rows.append({**told, "folder": str(run.directory), "command": run.run.get("command")})
    return Table("best", columns, rows)


def _best_run(group: Group, chosen: Quality) -> RunFiles:
    found = [run for run in group.runs if is_number(final(run).get(chosen.name))]
    pick = min if chosen.less_is_better else max
    return pick(found, key=lambda run: final(run)[chosen.name])


_FEWEST = 4  # trials, below which a picture of them says nothing


def searched(comparison: Comparison, folder: Path) -> Section | None:
    """Importances and parallel coordinates of a search with enough trials."""
    search = comparison.search
    if search is None or len(search.trials) < _FEWEST:
        return None
    table = _search_table(search)
    figures = [*_importances(search), _coordinates(search)]
    html = fill("compared:search", table=table, figures=figures, search=search)
    return Section("What mattered", "search", html, figures, [table], of=f"n = {len(search.trials)} trials")


def _search_table(search: Search) -> Table:
    columns = [
        Column("parameter", "parameter", text, "text"),
        Column("low", "lowest", written),
        Column("high", "highest", written),
        Column("best", "in the best trial", written),
        Column("importance", "importance", percent),
    ]
    values, _ = search.best_first[0]
    rows = []
    for each in search.parameters:
        found = {"parameter": each.key, "importance": search.importances.get(each.key), "best": values[each.key]}
        rows.append({**found, "low": each.low, "high": each.high})
    return Table("search", columns, rows)


def _importances(search: Search) -> list[Figure]:
    if not search.importances:
        return []
    names = [next(each.name for each in search.parameters if each.key == key) for key in search.importances]
    x = Axis("", (-0.5, len(names) - 0.5), range(len(names)), names)
    bars = Bars([(place, share) for place, share in enumerate(search.importances.values())])
    title = f"Share of the variance of {search.metric}"
    return [Figure("importances", [Panel(title, bars, x, Axis("explained", (0.0, 1.0), percent=True))], 1)]


def _coordinates(search: Search) -> Figure:
    """A line a trial over the parameters, and the metric at the right: the best quarter in a colour of its own."""
    values = [value for _, value in search.trials]
    result = Parameter(search.metric, min(values), max(values))
    axes = [*search.parameters, result]
    lines = [
        [(place, axis.place({**given, search.metric: value}[axis.key])) for place, axis in enumerate(axes)]
        for given, value in search.best_first
    ]
    quarter = max(1, len(lines) // 4)
    good, others = lines[:quarter], lines[quarter:]
    curves: list[tuple[str, Points]] = [("best trial", good[0]), ("middle trial", lines[len(lines) // 2])]
    x = Axis("", (-0.2, len(axes) - 0.8), range(len(axes)), [axis.name for axis in axes])
    y = Axis("place in its range", (-0.05, 1.05), (0.0, 1.0), ("lowest", "highest"))
    return Figure("parallel_coordinates", [Panel("Trials", Lines(curves, [good, others]), x, y)], 1)
