"""The sections of a comparison, each of what the runs share; what they do not share is named and left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from adadepth.measure.names import WORK, first_depth
from adadepth.report.comparison_tables import (
    Spread,
    best,
    class_depth_table,
    class_depths,
    figure_table,
    run_table,
    searched,
    settings_table,
    spread_text,
    verdict_of,
    verdict_table,
)
from adadepth.report.figure import (
    Axis,
    Dot,
    Figure,
    Lines,
    Panel,
    Points,
    Scatter,
    depth_axis,
    is_followed,
    line_panel,
    with_air,
)
from adadepth.report.groups import (
    DEPTH,
    Comparison,
    Group,
    Quality,
    best_of_both,
    compared_quality,
    curves,
    differing,
    headlines,
    listed,
    name_of,
    shared_figures,
    unshared,
    unshared_figures,
)
from adadepth.report.section import Section, fill
from adadepth.report.seeds import seeds_section
from adadepth.report.worth import QUESTIONS
from adadepth.report.writing import REPORT

MAX_CURVES, MAX_SETTINGS = 12, 8
Build = Callable[[Comparison, Path], Section | None]


def comparison_sections(comparison: Comparison, folder: Path) -> list[Section]:
    """All there is to say about some runs.

    Args:
        comparison: The runs.
        folder: Of the page, from where it links to theirs.
    """
    return _built(
        (best, searched, settings, verdicts, over_training, figures, tradeoff, classes_compared, runs),
        comparison,
        folder,
    )


def sections_beside_seeds(comparison: Comparison, folder: Path) -> list[Section]:
    """The sections of a comparison that a summary of seeds does not replace."""
    return _built((verdicts, over_training, tradeoff, classes_compared, runs), comparison, folder)


def _built(builders: Sequence[Build], comparison: Comparison, folder: Path) -> list[Section]:
    found = (build(comparison, folder) for build in builders)
    return [_stated(section, comparison) for section in found if section is not None]


def _stated(section: Section, comparison: Comparison) -> Section:
    of = section.of or number_of_runs(comparison)
    return replace(section, of=of, figures=[replace(figure, of=of) for figure in section.figures])


def number_of_runs(comparison: Comparison) -> str:
    """How many runs there are, in how many groups."""
    n, groups = len(comparison.runs), len(comparison.groups)
    grouped = f" of {groups} settings" if 1 < groups < n else ""
    return f"n = {n} run{'s' * (n != 1)}{grouped}"


def settings(comparison: Comparison, folder: Path) -> Section:
    """What differs, and what is left out of the page."""
    found = [group.settings for group in comparison.groups]
    keys = differing(found)
    shown = settings_table(comparison, keys[:MAX_SETTINGS]) if keys else None
    told = {"unshared": unshared(found), "listed": listed, "further": keys[MAX_SETTINGS:]}
    html = fill("compared:settings", table=shown, comparison=comparison, **told)
    return Section("What differs", "differs", html, tables=[settings_table(comparison, keys)] if keys else [])


def verdicts(comparison: Comparison, folder: Path) -> Section | None:
    """The answers of the runs, and the sentences they rest on."""
    told = [(name_of(entry, run), verdict_of(run)) for entry in comparison.entries for run in entry.runs]
    if not any(found for _, found in told):
        return None
    table = verdict_table(comparison)
    html = fill("compared:verdicts", table=table, told=told, questions=QUESTIONS)
    return Section("Verdicts", "verdicts", html, tables=[table])


# ---- curves

_PANELS = (
    ("Loss in training", "train/loss", "loss"),
    ("Loss in evaluation", "eval/loss", "loss"),
    ("Mean depth", DEPTH, "mean depth (updates)"),
    ("Depth held by the budget", "budget/measured", "in the budget's unit"),
    ("The budget itself", "budget/target", "in the budget's unit"),
)


def over_training(comparison: Comparison, folder: Path) -> Section | None:
    """Losses, quality, depth and budget over training, of all groups in one drawing each."""
    chosen = compared_quality(comparison)
    entries = _drawn(comparison, chosen)
    wanted = list(_PANELS)
    if chosen is not None and chosen.name not in [name for _, name, _ in wanted]:
        wanted.insert(2, (chosen.name, chosen.name, chosen.name.rpartition("/")[2]))
    left_out = list(_without(comparison))
    panels = [panel for panel in (_panel(entries, *each) for each in wanted if each[1] not in left_out) if panel]
    if not panels:
        return None
    figure = Figure("curves", panels, columns=3)
    told = {**dict(_reasons(comparison)), "many": len(comparison.entries) > MAX_CURVES}
    shown = {"figure": figure, "comparison": comparison, "most": MAX_CURVES, "chosen": chosen, "told": told}
    html = fill("compared:curves", **shown, means=any(len(entry.runs) > 1 for entry in comparison.entries))
    return Section("Over training", "training", html, [figure])


def _drawn(comparison: Comparison, chosen: Quality | None) -> list[Group | None]:
    """The groups whose curves are drawn: all, or of too many the best; None holds the place of the others."""
    entries = comparison.entries
    if len(entries) <= MAX_CURVES:
        return list(entries)
    ranked = chosen.best_first(entries) if chosen else entries
    kept = {entry.label for entry in ranked[:MAX_CURVES]}
    return [entry if entry.label in kept else None for entry in entries]


def _without(comparison: Comparison) -> Iterator[str]:
    """Curves that would not compare."""
    if comparison.unit is None:
        yield DEPTH
    if len(_budget_units(comparison)) > 1:
        yield from ("budget/measured", "budget/target")


def _reasons(comparison: Comparison) -> Iterator[tuple[str, bool]]:
    yield "depth", comparison.unit is None
    yield "budget", len(_budget_units(comparison)) > 1
    yield "losses", len({group.settings.get("model.name") for group in comparison.groups}) > 1


def _budget_units(comparison: Comparison) -> set[str]:
    """What the budgets of the runs that have one are counted in."""
    held = (group.settings for group in comparison.groups)
    return {str(each.get("budget.unit")) for each in held if each.get("budget.target") is not None}


def _panel(entries: Sequence[Group | None], title: str, name: str, y_title: str) -> Panel | None:
    found: list[tuple[str, Points, list[Points]]] = [
        (entry.label, *curves(entry, name)) if entry else ("", [], []) for entry in entries
    ]
    means = [(label, points) for label, points, _ in found]
    members = [of for _, _, of in found]
    everything = [*means, *(("", points) for of in members for points in of)]
    if not is_followed(everything):
        return None
    return replace(line_panel(title, everything, y_title), mark=Lines(means, members))


# ---- figures


def figures(comparison: Comparison, folder: Path) -> Section | None:
    """Final figures; of a single group those of its seeds."""
    shared = shared_figures(comparison.groups)
    names = [name for name in headlines(comparison.groups) if name in shared]
    if comparison.unit is None:
        names = [name for name in names if name != DEPTH]
    if not names:
        return None
    if len(comparison.groups) == 1 and len(comparison.runs) > 1:
        return seeds_section(comparison.groups[0].summary)
    table = figure_table(comparison.entries, names)
    html = fill("compared:figures", table=table, unshared=unshared_figures(comparison.groups), listed=listed)
    return Section("Final figures", "figures", html, tables=[table])


# ---- quality against work

_COSTS = ((WORK, "work needed, share of full depth"), (DEPTH, "mean depth (updates)"))


def tradeoff(comparison: Comparison, folder: Path) -> Section | None:
    """Quality against work, and against depth where that means the same in all runs."""
    chosen = compared_quality(comparison)
    if chosen is None:
        return None
    without = set(_without(comparison))
    drawn = [_scatter(comparison, cost, title, chosen) for cost, title in _COSTS if cost not in without]
    panels = [panel for panel in drawn if panel]
    if not panels:
        return None
    figure = Figure("quality_and_work", panels)
    is_ranked, is_other = _is_ranked(comparison), bool(comparison.other_data)
    shown = {"figure": figure, "chosen": chosen, "ranked": is_ranked, "is_other_data": is_other}
    html = fill("compared:tradeoff", **shown, bars=any(len(entry.runs) > 1 for entry in comparison.entries))
    return Section("Quality against work", "quality", html, [figure])


def _is_ranked(comparison: Comparison) -> bool:
    """Whether it means something that one run is better than another: not on other data, nor between seeds."""
    return len(comparison.groups) > 1 and not comparison.other_data


def _scatter(comparison: Comparison, cost: str, title: str, chosen: Quality) -> Panel | None:
    entries, is_ranked = comparison.entries, _is_ranked(comparison)
    is_best = best_of_both(entries, cost, chosen)
    groups = [
        (entry.label, _dots(entry, cost, chosen, marked and is_ranked))
        for entry, marked in zip(entries, is_best, strict=True)
    ]
    dots = [dot for _, of in groups for dot in of]
    if not dots:
        return None
    spans = [
        with_air([value + sign * spread for value, spread in ends for sign in (-1, 1)], floor)
        for ends, floor in (
            ([(dot.x, dot.spread_x) for dot in dots], 0.0),
            ([(dot.y, dot.spread_y) for dot in dots], None),
        )
    ]
    front = sorted((dot.x, dot.y) for dot in dots if dot.marked)
    best = [label for label, of in groups if any(dot.marked for dot in of)]
    return Panel(
        f"Against {title.partition(' (')[0].partition(',')[0]}",
        Scatter(groups, front),
        Axis(title, spans[0], percent=cost == WORK),
        Axis(chosen.name, spans[1]),
        f"{chosen.name} against {title}" + (f"; Pareto set: {', '.join(best)}" if best else ""),
        1.24,
    )


def _dots(entry: Group, cost: str, chosen: Quality, marked: bool) -> list[Dot]:
    x, y = entry.figure(cost), entry.figure(chosen.name)
    if x is None or y is None:
        return []
    title = f"{entry.label}: {spread_text(y)} at {spread_text(x)}"
    return [Dot(x["mean"], y["mean"], title, marked, x.get("std", 0.0), y.get("std", 0.0))]


# ---- depth by class


def classes_compared(comparison: Comparison, folder: Path) -> Section | None:
    """Mean depth of the classes that all runs have."""
    depths, others = class_depths(comparison.entries)
    if comparison.unit is None or not depths:
        return None
    table, figure = class_depth_table(depths), _class_figure(comparison, depths)
    html = fill("compared:classes", figure=figure, table=table, others=others, listed=listed, unit=comparison.unit)
    return Section(f"Depth by {comparison.unit} class", "classes", html, [figure], [table])


def _class_figure(comparison: Comparison, depths: Mapping[str, Mapping[str, Spread]]) -> Figure:
    """A row a class, a point a group; points of a row lie a little below each other."""
    halting = [run.halting for run in comparison.runs if run.halting.get("classes")]
    first, last = min(map(first_depth, halting)), max(int(found["max_depth"]) for found in halting)
    count = len(comparison.entries)
    groups = [
        (entry.label, _class_dots(entry.label, depths, offset=0.6 * ((place + 0.5) / count - 0.5)))
        for place, entry in enumerate(comparison.entries)
    ]
    names = Axis("", (len(depths) - 0.4, -0.6), range(len(depths)), list(depths))
    tall = max(1.0, 0.016 * len(depths) * max(5, count))
    axis = depth_axis("mean depth (updates)", last, first)
    return Figure("depth_by_class", [Panel("Mean depth by class", Scatter(groups), axis, names, tall=tall)])


def _class_dots(label: str, depths: Mapping[str, Mapping[str, Spread]], offset: float) -> list[Dot]:
    """The points of a group, row by row."""
    rows = [(row, name, found[label]) for row, (name, found) in enumerate(depths.items()) if label in found]
    return [
        Dot(depth["mean"], row + offset, f"{label}, {name}: {spread_text(depth)}", spread_x=depth.get("std", 0.0))
        for row, name, depth in rows
    ]


# ---- runs


def runs(comparison: Comparison, folder: Path) -> Section:
    """The runs that are compared, with links to their pages."""
    table = run_table(comparison)
    runs = [(name_of(entry, run), run.directory / REPORT) for entry in comparison.entries for run in entry.runs]
    links = [(name, os.path.relpath(page, folder)) for name, page in runs if page.is_file()]
    return Section("Runs", "runs", fill("compared:runs", table=table, links=links), tables=[table])
