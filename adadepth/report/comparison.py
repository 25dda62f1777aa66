"""Report sections that compare several runs by their common metrics, and list the metrics that some runs lack."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adadepth.metrics.metric_names import WORK, find_first_depth
from adadepth.metrics.unit_costs import TIME, UNIT_COST_TITLES, format_count, has_separate_predictions, name_compute
from adadepth.report.baseline_comparison import QUESTIONS
from adadepth.report.comparison_tables import (
    Spread,
    best,
    build_class_depth_table,
    build_figure_table,
    build_resource_table,
    build_run_table,
    build_search_section,
    build_settings_table,
    build_verdict_table,
    compute_class_depths,
    format_spread,
    get_verdict,
)
from adadepth.report.figure import (
    Axis,
    Dot,
    Figure,
    Lines,
    Panel,
    Points,
    Scatter,
    build_depth_axis,
    build_line_panel,
    is_followed,
    pad_range,
)
from adadepth.report.isoflop import build_isoflop_section
from adadepth.report.run_files import REPORT
from adadepth.report.run_groups import (
    DEPTH,
    Comparison,
    Group,
    Quality,
    choose_unit_macs,
    curves,
    find_pareto_groups,
    format_run_name,
    get_compared_quality,
    get_differing_keys,
    get_headline_metrics,
    get_shared_metrics,
    get_unshared_keys,
    get_unshared_metrics,
    join_names,
)
from adadepth.report.section import Section, fill
from adadepth.report.seeds import build_seeds_section

MAX_CURVES, MAX_SETTINGS = 12, 8
Build = Callable[[Comparison, Path], Section | None]


def build_comparison_sections(comparison: Comparison, folder: Path) -> list[Section]:
    """Build all report sections that compare runs, quality against compute first.

    Args:
        comparison: Compared runs.
        folder: Folder of the page. Links are relative to it.
    """
    return _build_sections(
        (
            compare_tradeoffs,
            best,
            build_search_section,
            settings,
            verdicts,
            over_training,
            figures,
            build_isoflop_section,
            compare_classes,
            runs,
        ),
        comparison,
        folder,
    )


def build_sections_beside_seeds(comparison: Comparison, folder: Path) -> list[Section]:
    """Build the sections that compare runs with different seeds, shown below their summary."""
    return _build_sections((verdicts, over_training, compare_classes, runs), comparison, folder)


def build_tradeoff_section(comparison: Comparison, folder: Path) -> Section | None:
    """Build the section on quality against compute alone, or return None without such figures."""
    return next(iter(_build_sections((compare_tradeoffs,), comparison, folder)), None)


def _build_sections(builders: Sequence[Build], comparison: Comparison, folder: Path) -> list[Section]:
    sections = []
    for build in builders:
        if (section := build(comparison, folder)) is not None:
            sample = section.of or count_runs(comparison)
            figures = [replace(figure, of=sample) for figure in section.figures]
            sections.append(replace(section, of=sample, figures=figures))
    return sections


def count_runs(comparison: Comparison) -> str:
    """Format how many runs and how many groups of equal settings are compared."""
    n, groups = len(comparison.runs), len(comparison.groups)
    grouped = f" of {groups} settings" if 1 < groups < n else ""
    return f"n = {n} run{'s' * (n != 1)}{grouped}"


def settings(comparison: Comparison, folder: Path) -> Section:
    """Build the report section on settings that differ between runs, and on excluded runs."""
    group_settings = [group.settings for group in comparison.groups]
    keys = get_differing_keys(group_settings)
    table = build_settings_table(comparison, keys[:MAX_SETTINGS]) if keys else None
    content = {
        "unshared": get_unshared_keys(group_settings),
        "listed": join_names,
        "extra_settings": keys[MAX_SETTINGS:],
    }
    html = fill("compared:settings", table=table, comparison=comparison, **content)
    return Section(
        "Settings that differ", "differs", html, tables=[build_settings_table(comparison, keys)] if keys else []
    )


def verdicts(comparison: Comparison, folder: Path) -> Section | None:
    """Build the report section on the verdicts of runs and the sentences that support them."""
    run_verdicts = [
        (format_run_name(entry, run), get_verdict(run)) for entry in comparison.entries for run in entry.runs
    ]
    if not any(run_verdict for _, run_verdict in run_verdicts):
        return None
    table = build_verdict_table(comparison)
    html = fill(
        "compared:verdicts", table=table, verdicts=run_verdicts, questions=QUESTIONS,
        over_seeds=any(len(entry.runs) > 1 for entry in comparison.entries),
        predictions_apart=has_separate_predictions(run.halting for run in comparison.runs),
    )  # fmt: skip
    return Section("Verdicts", "verdicts", html, tables=[table])


# ---- curves

_PANELS = (
    ("Loss in training", "train/loss", "loss"),
    ("Loss in evaluation", "eval/loss", "loss"),
    ("Mean depth", DEPTH, "mean depth (updates)"),
    ("Depth under the budget", "budget/measured", "in the unit of the budget"),
    ("Budget target", "budget/target", "in the unit of the budget"),
)


def over_training(comparison: Comparison, folder: Path) -> Section | None:
    """Build the report section of training curves of all runs: loss, quality, depth and budget."""
    quality = get_compared_quality(comparison)
    entries = _select_groups(comparison, quality)
    specs = list(_PANELS)
    if quality is not None and quality.name not in [name for _, name, _ in specs]:
        specs.insert(2, (quality.name, quality.name, quality.name.rpartition("/")[2]))
    left_out = list(_get_incomparable_metrics(comparison))
    panels = [
        panel for panel in (_build_curve_panel(entries, *spec) for spec in specs if spec[1] not in left_out) if panel
    ]
    if not panels:
        return None
    figure = Figure("curves", panels, columns=3)
    remarks = {
        "depth": comparison.unit is None,
        "budget": len(_get_budget_units(comparison)) > 1,
        "losses": len({group.settings.get("model.name") for group in comparison.groups}) > 1,
        "many": len(comparison.entries) > MAX_CURVES,
    }
    content = {"figure": figure, "comparison": comparison, "most": MAX_CURVES, "quality": quality, "remarks": remarks}
    html = fill("compared:curves", **content, means=any(len(entry.runs) > 1 for entry in comparison.entries))
    return Section("Training curves", "training", html, [figure])


def _select_groups(comparison: Comparison, quality: Quality | None) -> list[Group | None]:
    """Return the groups of runs with training curves, and None in place of others so that colours stay the same."""
    entries = comparison.entries
    if len(entries) <= MAX_CURVES:
        return list(entries)
    ranked = quality.best_first(entries) if quality else entries
    selected = {entry.label for entry in ranked[:MAX_CURVES]}
    return [entry if entry.label in selected else None for entry in entries]


def _get_incomparable_metrics(comparison: Comparison) -> Iterator[str]:
    """Yield the metrics whose values cannot be compared between these runs."""
    if comparison.unit is None:
        yield DEPTH
    if len(_get_budget_units(comparison)) > 1:
        yield from ("budget/measured", "budget/target")


def _get_budget_units(comparison: Comparison) -> set[str]:
    """Return the units of the budgets of all runs."""
    all_settings = (group.settings for group in comparison.groups)
    return {
        str(group_settings.get("budget.unit"))
        for group_settings in all_settings
        if group_settings.get("budget.target") is not None
    }


def _build_curve_panel(entries: Sequence[Group | None], title: str, name: str, y_title: str) -> Panel | None:
    entry_curves: list[tuple[str, Points, list[Points]]] = [
        (entry.label, *curves(entry, name)) if entry else ("", [], []) for entry in entries
    ]
    means = [(label, points) for label, points, _ in entry_curves]
    members = [member_curves for _, _, member_curves in entry_curves]
    everything = [*means, *(("", points) for member_curves in members for points in member_curves)]
    if not is_followed(everything):
        return None
    return replace(build_line_panel(title, everything, y_title), mark=Lines(means, members))


# ---- figures


def figures(comparison: Comparison, folder: Path) -> Section | None:
    """Build the report section on final metrics of groups of runs."""
    shared = get_shared_metrics(comparison.groups)
    names = [name for name in get_headline_metrics(comparison.groups) if name in shared]
    if comparison.unit is None:
        names = [name for name in names if name != DEPTH]
    if not names:
        return None
    predictions_apart = has_separate_predictions(run.halting for run in comparison.runs)
    if len(comparison.groups) == 1 and len(comparison.runs) > 1:
        return build_seeds_section(comparison.groups[0].summary, predictions_apart)
    table = build_figure_table(comparison.entries, names)
    html = fill(
        "compared:figures", table=table, unshared=get_unshared_metrics(comparison.groups), listed=join_names,
        predictions_apart=predictions_apart,
    )  # fmt: skip
    return Section("Final metrics", "figures", html, tables=[table])


# ---- quality against work


def _list_costs(entries: Sequence[Group]) -> list[tuple[str, str]]:
    """Return names and titles of the costs in which groups of runs are compared."""
    macs, halting = choose_unit_macs(entries), [run.halting for entry in entries for run in entry.runs]
    units = [] if macs is None else [(macs, name_compute(UNIT_COST_TITLES[macs], halting))]
    share = name_compute("compute needed, share of full depth", halting)
    return [*units, (TIME, UNIT_COST_TITLES[TIME]), (WORK, share), (DEPTH, "mean depth (updates)")]


def compare_tradeoffs(comparison: Comparison, folder: Path) -> Section | None:
    """Build the report section on quality against compute and, in a common unit, against depth."""
    quality = get_compared_quality(comparison)
    if quality is None:
        return None
    excluded = set(_get_incomparable_metrics(comparison))
    candidates = [
        _build_scatter_panel(comparison, cost, title, quality)
        for cost, title in _list_costs(comparison.entries)
        if cost not in excluded
    ]
    panels = [panel for panel in candidates if panel]
    if not panels:
        return None
    figure, (table, matches) = Figure("quality_and_work", panels), build_resource_table(comparison, quality)
    is_ranked, is_other = _is_ranked(comparison), bool(comparison.other_data)
    content = {"figure": figure, "quality": quality, "ranked": is_ranked, "is_other_data": is_other}
    content |= {"table": table, "matches": matches}
    html = fill("compared:tradeoff", **content, bars=any(len(entry.runs) > 1 for entry in comparison.entries))
    return Section("Quality against compute", "quality", html, [figure], [table])


def _is_ranked(comparison: Comparison) -> bool:
    """Return whether any two of the compared runs can be ranked by quality.

    Runs on different data, or with different seeds only, are not ranked.
    """
    return len(comparison.groups) > 1 and not comparison.other_data


def _build_scatter_panel(comparison: Comparison, cost: str, title: str, quality: Quality) -> Panel | None:
    entries, is_ranked = comparison.entries, _is_ranked(comparison)
    is_best = find_pareto_groups(entries, cost, quality)
    groups = [
        (entry.label, _build_dots(entry, cost, quality, marked and is_ranked))
        for entry, marked in zip(entries, is_best, strict=True)
    ]
    dots = [dot for _, group_dots in groups for dot in group_dots]
    if not dots:
        return None
    spans = [
        pad_range([value + sign * spread for value, spread in ends for sign in (-1, 1)], floor)
        for ends, floor in (
            ([(dot.x, dot.spread_x) for dot in dots], 0.0),
            ([(dot.y, dot.spread_y) for dot in dots], None),
        )
    ]
    fronts: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for entry, (_, group_dots) in zip(entries, groups, strict=True):
        fronts.setdefault(entry.model, []).extend((dot.x, dot.y) for dot in group_dots if dot.marked)
    best = [label for label, group_dots in groups if any(dot.marked for dot in group_dots)]
    return Panel(
        f"Against {title.partition(' (')[0].partition(',')[0]}",
        Scatter(groups, [sorted(front) for front in fronts.values() if len(front) > 1]),
        Axis(title, spans[0], percent=cost == WORK),
        Axis(quality.name, spans[1]),
        f"{quality.name} against {title}" + (f"; Pareto set: {', '.join(best)}" if best else ""),
        1.24,
    )


def _build_dots(entry: Group, cost: str, quality: Quality, marked: bool) -> list[Dot]:
    x, y = entry.figure(cost), entry.figure(quality.name)
    if x is None or y is None:
        return []
    title = f"{entry.label}: {format_spread(y)} at {format_spread(x)}{_describe_unit_costs(entry)}"
    return [Dot(x["mean"], y["mean"], title, marked, x.get("std", 0.0), y.get("std", 0.0))]


def _describe_unit_costs(entry: Group) -> str:
    """Format compute and time of a token or sequence in brackets, or return an empty text if none is known."""
    costs = {title: figure["mean"] for name, title in UNIT_COST_TITLES.items() if (figure := entry.figure(name))}
    described = ", ".join(
        f"{f'{cost:.3g}' if title == UNIT_COST_TITLES[TIME] else format_count(cost)} {title}"
        for title, cost in costs.items()
    )
    return f" ({described})" if described else ""


# ---- depth by class


def compare_classes(comparison: Comparison, folder: Path) -> Section | None:
    """Build the report section on the mean depth of each class of tokens or sequences that all runs have."""
    depths, unshared_classes = compute_class_depths(comparison.entries)
    if comparison.unit is None or not depths:
        return None
    table, figure = build_class_depth_table(depths), _draw_class_figure(comparison, depths)
    html = fill(
        "compared:classes",
        figure=figure,
        table=table,
        unshared_classes=unshared_classes,
        listed=join_names,
        unit=comparison.unit,
    )
    return Section(f"Depth by {comparison.unit} class", "classes", html, [figure], [table])


def _draw_class_figure(comparison: Comparison, depths: Mapping[str, Mapping[str, Spread]]) -> Figure:
    """Draw a figure with a row per class and a point per group of runs."""
    halting = [run.halting for run in comparison.runs if run.halting.get("classes")]
    first, last = (
        min(map(find_first_depth, halting)),
        max(int(halting_summary["max_depth"]) for halting_summary in halting),
    )
    count = len(comparison.entries)
    groups = [
        (entry.label, _build_class_dots(entry.label, depths, offset=0.6 * ((position + 0.5) / count - 0.5)))
        for position, entry in enumerate(comparison.entries)
    ]
    names = Axis("", (len(depths) - 0.4, -0.6), range(len(depths)), list(depths))
    tall = max(1.0, 0.016 * len(depths) * max(5, count))
    axis = build_depth_axis("mean depth (updates)", last, first)
    return Figure("depth_by_class", [Panel("Mean depth by class", Scatter(groups), axis, names, tall=tall)])


def _build_class_dots(label: str, depths: Mapping[str, Mapping[str, Spread]], offset: float) -> list[Dot]:
    """Return the points of a group of runs in the figure of depth by class, one per row of the figure."""
    rows = [(row, name, by_group[label]) for row, (name, by_group) in enumerate(depths.items()) if label in by_group]
    return [
        Dot(depth["mean"], row + offset, f"{label}, {name}: {format_spread(depth)}", spread_x=depth.get("std", 0.0))
        for row, name, depth in rows
    ]


# ---- runs


def runs(comparison: Comparison, folder: Path) -> Section:
    """Build the section that lists the compared runs, with links to their pages."""
    table = build_run_table(comparison)
    runs = [(format_run_name(entry, run), run.directory / REPORT) for entry in comparison.entries for run in entry.runs]
    links = [(name, os.path.relpath(page, folder)) for name, page in runs if page.is_file()]
    return Section("Runs", "runs", fill("compared:runs", table=table, links=links), tables=[table])
