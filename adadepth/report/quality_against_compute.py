"""First section of a run's report: its quality against its compute, for runs that measured both at several points.

A line joins points of one trained model only. Points of separately trained networks stay apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adadepth.metrics.architectures import NOT_RETRAINED, compared_rows
from adadepth.metrics.exit_pareto import name_units, select_rules_without_labels
from adadepth.metrics.metric_names import WORK, is_loss
from adadepth.metrics.unit_costs import compute_share_with_predictions, name_compute
from adadepth.report.architectures import build_network_panels
from adadepth.report.baseline_comparison import compare_with_baselines, find_fitted_rule, qualities
from adadepth.report.budgets import format_budget_label, has_targets, select_compute, select_drawn_quality
from adadepth.report.exits import build_study_panel, format_set_sizes
from adadepth.report.figure import Axis, Dot, Figure, Panel, Scatter, pad_range
from adadepth.report.quality_pairs import get_relevant_difference
from adadepth.report.run_files import (
    ARCHITECTURES,
    BUDGETS,
    EXIT_RULES,
    EXITS,
    MATCHED_BASELINE,
    RunFiles,
    read_seed_runs,
)
from adadepth.report.section import Section, SectionEntry, fill
from adadepth.report.table import percent

_NEEDED = WORK.removeprefix("cost/")
_COMPUTE = "compute, share of full depth"
_UPDATES = "updates, share of full depth"
Groups = Sequence[tuple[str, Sequence[Dot]]]


def build_quality_section(files: RunFiles) -> Section | None:
    """Build the section on quality against compute, or return None if the run has no such points.

    Its points are those of exit rules, of one checkpoint at several depths, of the exits of one network, of one network
    at its own, fixed and shuffled depths, or of networks that were trained as baselines.
    """
    if files.of(ARCHITECTURES).get("rows"):
        return _build_network_section(files.of(ARCHITECTURES))
    panels = {"rules": list(_build_rule_panels(files)), "budgets": list(_build_budget_panels(files))}
    if not any(panels.values()):
        panels["exits"] = list(_build_exit_panels(files))
    if not any(panels.values()):
        panels["depths"] = list(_build_depth_panels(files))
    if not panels["rules"]:  # they have fixed depths and controls of their own
        panels["baselines"] = list(_build_baseline_panels(files))
    kinds = [kind for kind, drawn in panels.items() if drawn]
    if not kinds:
        return None
    figure = Figure("quality_against_compute", [panel for drawn in panels.values() for panel in drawn])
    counts_updates = any(panel.x is not None and panel.x.title == _UPDATES for panel in figure.panels)
    html = fill("quality", figure=figure, kinds=kinds, counts_updates=counts_updates)
    return Section("Quality against compute", "quality", html, [figure], of=_count_sample(files, kinds[0]))


def _build_network_section(compared: Mapping[str, Any]) -> Section | None:
    """Build the section of a comparison of architectures: perplexity against measured time, or else against compute."""
    if not (panels := build_network_panels(compared)):
        return None
    rows = compared_rows(compared)
    left_out = [row["label"] for row in rows if row["trained"] == NOT_RETRAINED and row["quality"]]
    figure = Figure("architectures", panels, columns=3)
    html = fill("quality", figure=figure, kinds=["networks"], left_out=left_out)
    cost = "measured time" if any(row.get("seconds") for row in compared["rows"]) else "compute"
    sample = f"n = {len(rows) - len(left_out)} networks, one seed each"
    return Section(f"Quality against {cost}", "quality", html, [figure], of=sample)


def _count_sample(files: RunFiles, kind: str) -> str:
    """Format the sample size of the first panels; an empty text stands for the units of the evaluation."""
    if kind == "budgets":
        return f"n = {files.of(BUDGETS)['measured_on']:,} sequences of {files.of(BUDGETS)['set']}"
    if kind == "depths":
        sets = files.of(MATCHED_BASELINE)["sets"].items()
        return "n = " + ", ".join(f"{entry['examples']:,} sequences of {name}" for name, entry in sets)
    sets = {"rules": EXIT_RULES, "exits": EXITS}.get(kind)
    return "" if sets is None else format_set_sizes(files.of(sets)["sets"])


def _build_rule_panels(files: RunFiles) -> Iterator[Panel]:
    """Yield a panel of exit rules for every evaluated set: score against compute, without oracles, which see labels."""
    studies = files.of(EXIT_RULES).get("sets", {})
    for name, study in studies.items():
        rules = {**study, "rows": select_rules_without_labels(study)}
        if (panel := build_study_panel(rules, "macs")) is not None:
            yield replace(panel, title=f"{name}: exit rules of one network")


def _build_budget_panels(files: RunFiles) -> Iterator[Panel]:
    """Yield the panel of one checkpoint that was fitted to several depths."""
    budgets = files.of(BUDGETS)
    if not has_targets(budgets):
        return
    metric, compute = str(select_drawn_quality(budgets)), select_compute(budgets["rows"])
    groups: dict[str, list[Dot]] = {"fitted to a target": [], "as trained": []}
    for row in budgets["rows"]:
        if metric in row["metrics"] and compute in row:
            label, value = format_budget_label(row), row["metrics"][metric]
            title = f"{label}: {metric} {value:.4f} at {percent(row[compute])} of the compute"
            group = "as trained" if row["target"] is None else "fitted to a target"
            groups[group].append(Dot(row[compute], value, title))
    drawn = [(name, dots) for name, dots in groups.items() if dots]
    if drawn:
        title = _COMPUTE if compute == "share_with_predictions" else name_compute(_COMPUTE, budgets["rows"])
        yield _build_panel(f"{budgets['set']}: one checkpoint at several depths", drawn, title, metric, joined=drawn)


def _build_exit_panels(files: RunFiles) -> Iterator[Panel]:
    """Yield a panel for every evaluated set: the quality of every exit of one network, and that at its own exits."""
    for name, summary in files.of(EXITS).get("sets", {}).items():
        metric = "score" if "score" in summary["exit"].get("quality", {}) else "loss"
        most, mean = summary["max_steps"], summary["exit"]["mean"]
        *values, value_at_exit = (_get_quality(row, metric) for row in (*summary["steps"], summary["exit"]))
        compute = _get_exit_compute(name, summary, files.halting)
        x_title = _UPDATES if compute is None else _COMPUTE
        *shares, share_at_exit = compute or [*(row["step"] / most for row in summary["steps"]), mean / most]
        dots = [
            Dot(share, value, f"exit {step}: {metric} {value:.4f}")
            for step, (share, value) in enumerate(zip(shares, values, strict=True), start=1)
            if value is not None
        ]
        if value_at_exit is not None and len(dots) > 1:
            title = f"its own exits: {metric} {value_at_exit:.4f} at {mean:.2f} updates"
            joined = [(f"all {name_units(summary)} exit at one step", dots)]
            groups = [*joined, ("its own exits", [Dot(share_at_exit, value_at_exit, title, marked=True)])]
            yield _build_panel(f"{name}: exits of one network", groups, x_title, metric, joined)


def _get_exit_compute(name: str, summary: Mapping[str, Any], halting: Mapping[str, Any]) -> list[float] | None:
    """Return the compute at every exit and at the network's own exits, with predictions, as shares of full depth.

    The result is None where a compute was not measured. Own exits of further sets have the mean compute of their exits,
    unless the exit rule also makes predictions before its exit.

    Args:
        name: Name of the evaluated set.
        summary: Step summary of the set.
        halting: Contents of halting.json, with the compute of the first set.
    """
    rows = summary["steps"]
    if any("compute" not in row for row in rows):
        return None
    at_exit: float | None = None
    if name == halting.get("set"):
        at_exit = compute_share_with_predictions(halting) or halting.get("cost", {}).get(_NEEDED)
    elif halting.get("predictions_per_unit", 1.0) == 1.0:
        at_exit = math.fsum(row["share"] * row["compute"] for row in rows)
    return None if at_exit is None else [*(row["compute"] for row in rows), at_exit]


def _build_depth_panels(files: RunFiles) -> Iterator[Panel]:
    """Yield a panel for every evaluated set: the quality of one network at its own, fixed and shuffled depths."""
    fitted = find_fitted_rule(files)
    own_name = "its own depths" if fitted is None else f"depths by {fitted.label}"
    for name, entry in files.of(MATCHED_BASELINE).get("sets", {}).items():
        metric = next((metric for metric in (*qualities(files), "loss", "accuracy") if metric in entry["own"]), None)
        most, mean = entry.get("max_depth", files.halting.get("max_depth")), entry["mean"]
        if metric is None or most is None or entry["std"] == 0:
            continue
        points = [("fixed depth", row["depth"], row["quality"]) for row in entry["fixed"]]
        points += [(own_name, mean, entry["own"]), (f"{own_name}, shuffled", mean, entry["permuted"]["quality"])]
        groups: dict[str, list[Dot]] = {}
        for kind, depth, quality in points:
            title = f"{kind}: {metric} {quality[metric]:.4f} at {depth:.2f} updates"
            groups.setdefault(kind, []).append(Dot(depth / most, quality[metric], title, marked=kind == own_name))
        joined = [("fixed depth", groups["fixed depth"])]
        yield _build_panel(f"{name}: depths of one network", list(groups.items()), _UPDATES, metric, joined)


def _get_quality(row: Mapping[str, Any], metric: str) -> float | None:
    """Return a metric or the loss of a step or of the exits, or None if it was not measured."""
    value: float | None = {**row, **row.get("quality", {})}.get(metric)
    return value


def _build_baseline_panels(files: RunFiles) -> Iterator[Panel]:
    """Yield the panel of the run and the baselines whose compute was measured, without a line between networks.

    A summary over seeds has means over seeds.
    """
    seed_runs = read_seed_runs(files)
    summaries = [run.halting for run in seed_runs or [files]]
    shares = [summary["cost"][_NEEDED] for summary in summaries if _NEEDED in summary.get("cost", {})]
    pairs = [pair for pair in compare_with_baselines(files).comparisons if pair.is_about_depth and pair.compute_ratio]
    if not pairs or not shares:
        return
    first, needed = pairs[0], statistics.mean(shares)
    run_name = f"these {len(seed_runs)} seeds" if seed_runs else "this run"
    groups = {run_name: [Dot(needed, first.adaptive, f"{run_name}: {first.adaptive:.4f} at {percent(needed)}")]}
    for pair in pairs:
        if pair.measure == first.measure and math.isclose(pair.adaptive, first.adaptive) and pair.compute_ratio:
            name, compute = pair.brief_against or pair.against, needed / pair.compute_ratio
            groups[name] = [Dot(compute, pair.baseline, f"{name}: {pair.baseline:.4f} at {percent(compute)}")]
    title = f"{run_name} and {'their' if seed_runs else 'its'} baselines"
    x_title = name_compute(_COMPUTE, summaries)
    yield _build_panel(title[0].upper() + title[1:], list(groups.items()), x_title, first.measure, joined=())


def _build_panel(title: str, groups: Groups, x_title: str, metric: str, joined: Groups) -> Panel:
    """Build a scatter panel over shares of full depth. A line joins the points of `joined`, which are of one model."""
    dots = [dot for _, group in groups for dot in group]
    line = sorted((dot.x, dot.y) for _, group in joined for dot in group)
    x = Axis(x_title, (0.0, 1.04 * max(1.0, *(dot.x for dot in dots))), percent=True)
    # On an axis of at least four least relevant differences, irrelevant ones look small.
    middle, least = statistics.mean([dot.y for dot in dots]), get_relevant_difference(metric)
    span = pad_range([*(dot.y for dot in dots), middle - 2 * least, middle + 2 * least])
    y = Axis(metric.replace("_", " ") + (", less is better" if is_loss(metric) else ""), span)
    return Panel(title, Scatter(groups, [line] if line else ()), x, y, f"{title}: {metric} against {x_title}", 1.1)


SECTIONS = (SectionEntry(5, build_quality_section),)
