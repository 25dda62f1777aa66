"""Tables that compare groups of runs: settings, verdicts, metrics and depths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adadepth.metrics.directions import is_less_better
from adadepth.metrics.metric_names import get_unit_wording
from adadepth.metrics.unit_costs import UNIT_COST_TITLES, UNIT_MACS, name_compute
from adadepth.report.baseline_comparison import ANSWERS, QUESTIONS, Verdict, to_json
from adadepth.report.figure import Axis, Bars, Figure, Lines, Panel, Points
from adadepth.report.guard import build_or_leave_out
from adadepth.report.resources import TITLES, average_sizes, describe_matches
from adadepth.report.run_files import (
    HALTING,
    RIVALS,
    SEEDS,
    RunFiles,
    get_early_stop_reason,
    get_run_unit,
    read_run,
)
from adadepth.report.run_groups import (
    Comparison,
    Group,
    Parameter,
    Quality,
    Search,
    choose_unit_macs,
    final,
    format_setting,
    get_shared_metrics,
    seed,
)
from adadepth.report.section import Section, fill
from adadepth.report.seeds import describe_seeds
from adadepth.report.table import Column, Table, format_duration, has_values, is_number, number, percent, text
from adadepth.report.verdict import NEEDED, verdict

Spread = Mapping[str, Any]  # `n`, `mean`, and of several values `std`
Cells = Mapping[str, Mapping[str, Any]]  # by row and column


def build_settings_table(comparison: Comparison, keys: Sequence[str]) -> Table:
    """Build the table of settings that differ between groups of runs, and of the number of runs in each group."""
    cells = {
        group.label: {**{key: format_setting(group.settings[key]) for key in keys}, "runs": str(len(group.runs))}
        for group in comparison.groups
    }
    return _build_side_by_side("settings", "setting", cells, lambda heading: [Column(heading, heading, text, "text")])


def build_figure_table(entries: Sequence[Group], names: Sequence[str]) -> Table:
    """Build the table of final metrics for each group of runs: mean, sample standard deviation and n."""
    cells = {entry.label: {name: entry.figure(name) for name in names} for entry in entries}
    return _build_side_by_side("final_figures", "metric", cells, _build_spread_columns)


def _build_side_by_side(name: str, corner: str, cells: Cells, columns_of: Callable[[str], list[Column]]) -> Table:
    """Build a table that compares groups of runs in rows, or in columns if there are more metrics than groups."""
    headings = list(next(iter(cells.values())))
    if len(headings) > len(cells):
        cells = {heading: {label: cells[label][heading] for label in cells} for heading in headings}
    else:
        corner = "run"
    return _build_table(name, corner, cells, columns_of)


def _build_table(name: str, corner: str, cells: Cells, columns_of: Callable[[str], list[Column]]) -> Table:
    headings = next(iter(cells.values()))
    columns = [
        Column(corner, corner, text, "text"),
        *(column for heading in headings for column in columns_of(heading)),
    ]
    return Table(name, columns, [{corner: label, **_add_spread_parts(row_cells)} for label, row_cells in cells.items()])


def _build_spread_columns(name: str, title: str = "") -> list[Column]:
    """Return the columns of a metric over seeds: one readable column, and mean, deviation and n for the CSV file."""
    parts = [Column(f"{name}/{part}", where="file") for part in _SPREAD_KEYS]
    return [Column(name, title, format_spread, where="view"), *parts]


_SPREAD_KEYS = ("mean", "std", "n")


def _add_spread_parts(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a row with mean, standard deviation and n of a metric added separately for the CSV file."""
    spreads = ((heading, spread) for heading, spread in cells.items() if isinstance(spread, Mapping))
    return {**cells, **{f"{heading}/{part}": spread.get(part) for heading, spread in spreads for part in _SPREAD_KEYS}}


def format_spread(spread: Spread) -> str:
    """Format mean and sample standard deviation, or the mean only for a single value."""
    digits = 4 if abs(spread["mean"]) < 10 else 2 if abs(spread["mean"]) < 1000 else 0
    return " ± ".join(f"{spread[key]:,.{digits}f}" for key in ("mean", "std") if key in spread)


# ---- verdicts


def build_verdict_table(comparison: Comparison) -> Table:
    """Build the table of verdicts of every group of runs, with the number of runs behind each answer."""
    questions = [
        name
        for name in ("target", "adapts", "worth")
        if name != "target" or any(name in get_verdict(run) for run in comparison.runs)
    ]
    halting = [run.halting for run in comparison.runs]
    unit_costs = {
        name: name_compute(title, halting) if name in UNIT_MACS else title
        for name, title in UNIT_COST_TITLES.items()
        if any(entry.figure(name) for entry in comparison.entries)
    }
    columns = [
        Column("run", "run", text, "text"),
        *(Column(name, QUESTIONS[name], text, "text") for name in questions),
        Column("cost", QUESTIONS["cost"], _format_work_share, where="view"),
        *(Column(f"cost/{part}", where="file") for part in _SPREAD_KEYS),
        *(column for name, title in unit_costs.items() for column in _build_spread_columns(name, title)),
    ]
    rows = [
        _add_spread_parts(
            {
                "run": entry.label,
                **{name: _join_answers(entry, name) for name in questions},
                "cost": _compute_work_share(entry),
                **{name: entry.figure(name) for name in unit_costs},
            }
        )
        for entry in comparison.entries
    ]
    return Table("verdicts", columns, rows)


def _compute_work_share(entry: Group) -> Spread | None:
    """Return the mean and spread of the compute that a group's depths require, and the reference of this share."""
    shares = {str(seed(run)): get_verdict(run).get("cost", {}).get("figures", {}).get(NEEDED) for run in entry.runs}
    values = {name: value for name, value in shares.items() if value is not None}
    return {**describe_seeds(values), "of": get_unit_wording(get_run_unit(entry.runs[0])).of_full} if values else None


def _format_work_share(share: Spread) -> str:
    return " ± ".join(percent(share[key]) for key in ("mean", "std") if key in share) + f" of {share['of']}"


def get_verdict(run: RunFiles) -> Mapping[str, Any]:
    """Return the verdict of a run from its files or, if they do not suffice, the one recorded in run.json."""
    recorded = run.run.get("verdict")
    return to_json(build_or_leave_out(verdict, run, {})) or (recorded if isinstance(recorded, dict) else {})


def _assess_seeds(entry: Group) -> Verdict:
    """Return the verdict on several runs that differ in the seed, which is that of their summary over seeds."""
    first, owners = entry.runs[0], {run.run.get("owner") for run in entry.runs}
    owner = owners.pop() if len(owners) == 1 else None
    trained = {} if owner is None else read_run(first.directory.parent / owner).of(RIVALS)
    contents = {SEEDS: dict(entry.summary), RIVALS: trained}
    summary = replace(first, run={}, halting={}, missing={HALTING: "there is none"}, others=contents)
    return build_or_leave_out(verdict, summary, {})


def _join_answers(entry: Group, name: str) -> str | None:
    """Join the answers that several runs gave to a question of the verdict, the most frequent first, with counts.

    The answer on quality is that over seeds.
    """
    if name == "worth" and len(entry.runs) > 1:
        answer = finding.answer if (finding := _assess_seeds(entry).get(name)) else None
        return None if answer is None else ANSWERS[answer]
    answers = [get_verdict(run).get(name, {}).get("answer") for run in entry.runs]
    counts = Counter(ANSWERS[answer] for answer in answers if answer in ANSWERS)
    if len(entry.runs) == 1:
        return next(iter(counts), None)
    return ", ".join(f"{answer} ({count} of {len(entry.runs)})" for answer, count in counts.most_common()) or None


# ---- depth by class


def compute_class_depths(entries: Sequence[Group]) -> tuple[dict[str, dict[str, Spread]], list[str]]:
    """Compute the mean depth of each class that all groups of runs have; also return the names of other classes.

    For several seeds it is the mean of their means, with the sample standard deviation between seeds.
    """
    of_entries = {entry.label: depths for entry in entries if (depths := _compute_class_depths(entry))}
    every = dict.fromkeys(name for depths in of_entries.values() for name in depths)
    shared = [name for name in every if all(name in depths for depths in of_entries.values())]
    unshared = [name for name in every if name not in shared]
    return {name: {label: depths[name] for label, depths in of_entries.items()} for name in shared}, unshared


def _compute_class_depths(entry: Group) -> dict[str, Spread]:
    values: dict[str, dict[str, float]] = {}
    for run in entry.runs:
        for name, described in run.halting.get("classes", {}).items():
            if is_number(described.get("mean")):
                values.setdefault(name, {})[str(seed(run))] = described["mean"]
    return {name: describe_seeds(by_seed) for name, by_seed in values.items()}


def build_class_depth_table(depths: Cells) -> Table:
    """Build the table of mean depths from `compute_class_depths`, with a row per class."""
    return _build_table("depth_by_class", "class", depths, _build_spread_columns)


# ---- runs


def build_run_table(comparison: Comparison) -> Table:
    """Build the table of every run: directory, status, time and size."""
    columns = [
        Column("name", "run", text, "text"),
        Column("seed", "seed", text),
        Column("status", "status", text, "text"),
        Column("wall_time_s", "wall time", format_duration),
        Column("parameters"),
        Column("started", "started", text, "text"),
        Column("folder", "folder", text, "text"),
    ]
    rows = []
    for entry in comparison.entries:
        for run in entry.runs:
            fields = {key: run.run.get(key) for key in ("wall_time_s", "parameters", "started")}
            status = "ended early" if get_early_stop_reason(run) else run.run.get("status")
            identity = {"name": entry.label, "seed": seed(run), "folder": str(run.directory)}
            rows.append({**fields, **identity, "status": status})
    return Table("runs", columns, rows)


def build_resource_table(comparison: Comparison, quality: Quality) -> tuple[Table, str]:
    """Build the table of quality, compute, parameters and cache of groups of runs, with a sentence on what is matched.

    Args:
        comparison: Compared runs.
        quality: Metric in which they are compared.
    """
    macs, rows = choose_unit_macs(comparison.entries), list[dict[str, Any]]()
    for entry in comparison.entries:
        sizes = average_sizes([run.run for run in entry.runs])
        figures = {"quality": entry.figure(quality.name), "compute": entry.figure(macs) if macs else None}
        means = {name: figure["mean"] for name, figure in figures.items() if figure}
        rows.append({"run": entry.label, **sizes, **means})
    unit = "" if macs is None else macs.rpartition("_")[2]
    columns = [
        Column("run", "run", text, "text"),
        Column("quality", quality.name, number),
        Column("compute", f"MACs per {unit}", "{:.4g}".format),
        Column("parameters", "parameters", "{:,.0f}".format),
        Column("cache_bytes_per_token", TITLES["cache_bytes_per_token"], "{:,.0f}".format),
    ]
    matches = describe_matches(rows) if len(rows) > 1 else ""
    return Table("resources", [column for column in columns if has_values(column, rows)], rows), matches


_MAX_GROUPS = 5


def best(comparison: Comparison, folder: Path) -> Section | None:
    """Build the report section that ranks groups of runs by the metric `optimise`."""
    if (quality := get_optimised_quality(comparison)) is None:
        return None
    table = build_best_table(comparison, quality)
    count, ties = len(quality.best_first(comparison.groups)), _count_best(comparison, quality)
    html = fill("compared:best", table=table, quality=quality, count=count, ties=ties)
    title = f"Equal by {quality.name}" if ties == count else f"Best by {quality.name}"
    return Section(title, "best", html, tables=[table])


def _count_best(comparison: Comparison, quality: Quality) -> int:
    """Return how many groups have the best value."""
    values = [quality.of(group) for group in quality.best_first(comparison.groups)]
    return values.count(values[0])


def format_best_line(comparison: Comparison) -> str | None:
    """Format the best group and the directory of its best run as a line, or say that several groups are equally good.

    Return None if groups have no ranking.
    """
    if (quality := get_optimised_quality(comparison)) is None:
        return None
    groups, ties = quality.best_first(comparison.groups), _count_best(comparison, quality)
    seeds, directory = len(groups[0].runs), _select_best_run(groups[0], quality).directory
    first = f"{groups[0].label}: {directory}" if seeds == 1 else f"{groups[0].label}; its best seed is {directory}"
    value = f"{quality.name}: {quality.of(groups[0]):.4f}" + (f" (mean of {seeds} seeds)" if seeds > 1 else "")
    if ties == 1:
        return f"best by {value}, {first}"
    if ties < len(groups):
        return f"best by {value}, in {ties} of {len(groups)} settings, such as {first}"
    return f"equal by {value} in all {ties} settings, none is the best; the first is {first}"


def get_optimised_quality(comparison: Comparison) -> Quality | None:
    """Return the metric that selects the best model in all runs, or None if it cannot rank the groups of runs.

    Groups cannot be ranked if they differ only in the seed or have different data. The name of an evaluation metric
    determines its direction. For other metrics, such as a depth, the search defines it.
    """
    names = {run.config.get("optimise") for run in comparison.runs}
    if len(names) != 1 or len(comparison.groups) < 2 or comparison.other_data:
        return None
    (name,) = names
    if name not in get_shared_metrics(comparison.groups):
        return None
    if comparison.search is not None:
        return Quality(name, comparison.search.less_is_better)
    return Quality(name, is_less_better(name, comparison.runs[0].config)) if name.startswith("eval") else None


def build_best_table(comparison: Comparison, quality: Quality) -> Table:
    """Build the table of groups of runs sorted by the optimised metric, the best first."""
    columns = [
        Column("run", "run", text, "text"),
        Column("value", quality.name, text),
        Column("n", "runs"),
        Column("folder", "folder", text, "code"),
        Column("command", "command", text, "code"),
    ]
    rows = []
    for group in quality.best_first(comparison.groups)[:_MAX_GROUPS]:
        run = _select_best_run(group, quality)
        cells = {"run": group.label, "value": format_spread(group.figure(quality.name) or {}), "n": len(group.runs)}
        rows.append({**cells, "folder": str(run.directory), "command": run.run.get("command")})
    return Table("best", columns, rows)


def _select_best_run(group: Group, quality: Quality) -> RunFiles:
    candidates = [run for run in group.runs if is_number(final(run).get(quality.name))]
    pick = min if quality.less_is_better else max
    return pick(candidates, key=lambda run: final(run)[quality.name])


_MIN_TRIALS = 4  # trials, below which a picture of them says nothing


def build_search_section(comparison: Comparison, folder: Path) -> Section | None:
    """Build the report section on a hyperparameter search, or return None if there are too few trials."""
    search = comparison.search
    if search is None or len(search.trials) < _MIN_TRIALS:
        return None
    table = _build_search_table(search)
    figures = [*_draw_importances(search), _draw_coordinates(search)]
    html = fill("compared:search", table=table, figures=figures, search=search)
    return Section("Importance of parameters", "search", html, figures, [table], of=f"n = {len(search.trials)} trials")


def _build_search_table(search: Search) -> Table:
    columns = [
        Column("parameter", "parameter", text, "text"),
        Column("low", "lowest", format_setting),
        Column("high", "highest", format_setting),
        Column("best", "in the best trial", format_setting),
        Column("importance", "importance", percent),
    ]
    values, _ = search.best_first[0]
    rows = []
    for parameter in search.parameters:
        cells = {
            "parameter": parameter.key,
            "importance": search.importances.get(parameter.key),
            "best": values[parameter.key],
        }
        rows.append({**cells, "low": parameter.low, "high": parameter.high})
    return Table("search", columns, rows)


def _draw_importances(search: Search) -> list[Figure]:
    if not search.importances:
        return []
    names = [
        next(parameter.name for parameter in search.parameters if parameter.key == key) for key in search.importances
    ]
    x = Axis("", (-0.5, len(names) - 0.5), range(len(names)), names)
    bars = Bars([(position, share) for position, share in enumerate(search.importances.values())])
    title = f"Share of the variance of {search.metric}"
    return [Figure("importances", [Panel(title, bars, x, Axis("explained", (0.0, 1.0), percent=True))], 1)]


def _draw_coordinates(search: Search) -> Figure:
    """Draw a parallel-coordinates figure: one line per trial over its hyperparameters and the metric."""
    values = [value for _, value in search.trials]
    result = Parameter(search.metric, min(values), max(values))
    axes = [*search.parameters, result]
    lines = [
        [(position, axis.place({**parameters, search.metric: value}[axis.key])) for position, axis in enumerate(axes)]
        for parameters, value in search.best_first
    ]
    quarter = max(1, len(lines) // 4)
    good, rest = lines[:quarter], lines[quarter:]
    curves: list[tuple[str, Points]] = [("best trial", good[0]), ("middle trial", lines[len(lines) // 2])]
    x = Axis("", (-0.2, len(axes) - 0.8), range(len(axes)), [axis.name for axis in axes])
    y = Axis("place in its range", (-0.05, 1.05), (0.0, 1.0), ("lowest", "highest"))
    return Figure("parallel_coordinates", [Panel("Trials", Lines(curves, [good, rest]), x, y)], 1)
