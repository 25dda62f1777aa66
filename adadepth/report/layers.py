"""Report section, headline figures and text on the layer weights (of a base model) that a task has learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from adadepth.metrics.layer_weights import WEIGHTS, describe_layers
from adadepth.report.depth_by_class import describe_cost, format_at_step, list_unavailable
from adadepth.report.figure import (
    Axis,
    Bars,
    Figure,
    Lines,
    Panel,
    build_depth_axis,
    build_heat_over_steps,
    build_step_axis,
    compute_depth_ticks,
    subsample,
)
from adadepth.report.run_files import RunFiles, distributions, get_run_unit
from adadepth.report.section import Section, SectionEntry, absent, fill
from adadepth.report.table import Column, Table, make_number_format, to_text

_STATE, _MAX_ROWS, _BAR = "state n (after n blocks)", 40, 40


def build_layer_tiles(files: RunFiles) -> Section | None:
    """Build the headline figures on the learned layer weights."""
    layers, halting = files.halting.get("layers"), files.halting
    if layers is None:
        return None
    blocks, n = len(layers["weights"]) - 1, halting.get("classes", {}).get("all", {}).get("n")
    return Section("", "overview", fill("layers:tiles", layers=layers, blocks=blocks, n=n, cost=halting["cost"]))


def build_layers_section(files: RunFiles) -> Section | None:
    """Build the report section on learned layer weights: at the last evaluation, and over training."""
    if get_run_unit(files) != "task":
        return None
    title, layers = "Layer distribution", files.halting.get("layers")
    if layers is None:
        reason = files.halting.get("missing", {}).get("halting/layers", "")
        return Section(title, "layers", absent("The distribution over layers", files, "halting.json", reason))
    weights, history = layers["weights"], get_layer_history(files.metrics)
    figure = Figure("layers", [_build_bars_panel(weights), *_build_history_panels(history)])
    table, over_training = build_weight_table(weights), _build_history_table(history)
    reason = "metrics.jsonl holds no weights of layers"
    missing = "" if history else absent("The distribution over training", files, "metrics.jsonl", reason)
    content = {"figure": figure, "table": table, "over_training": over_training, "missing": missing}
    largest, needed = (
        max(range(len(weights)), key=weights.__getitem__),
        describe_needed_blocks(layers["deepest"], len(weights) - 1),
    )
    html = fill("layers:layers", **content, needed=needed, largest=largest, share=_format_weight(max(weights), 1))
    return Section(title, "layers", html, [figure], [table, *([over_training] if over_training else [])])


def describe_needed_blocks(deepest: int, blocks: int) -> str:
    """Describe in a sentence how many blocks of the base model the learned layer weights require."""
    if deepest == blocks:
        return f"The deepest state with a weight is the last one, so all {blocks} blocks of the base must run."
    return (
        f"The deepest state with a weight is number {deepest}, so {deepest} of the {blocks} blocks of the base must "
        f"run; every prediction stays the same without the other {blocks - deepest}."
    )


def _build_bars_panel(weights: Sequence[float]) -> Panel:
    last = len(weights) - 1
    y = Axis("weight", (0, 1.05 * max(weights)), percent=True)
    bars = Bars(list(enumerate(weights)))
    title = "Weight of each state"
    return Panel(title, bars, build_depth_axis(_STATE, last, first=0), y, f"{title}, 0 to {last}", 1.08)


def _build_history_panels(history: Sequence[tuple[int, Mapping[str, Any]]]) -> list[Panel]:
    """Build panels of layer weights, their entropy and depth over evaluations, on axes equal for all tasks."""
    if len(history) < 2:  # measured once, there is nothing to follow
        return []
    shares = [(step, described["weights"]) for step, described in history]
    last = len(shares[0][1]) - 1
    steps = build_step_axis([step for step, _ in history])

    def lines(title: str, y: Axis, keys: Mapping[str, str]) -> Panel:
        curves = [(name, [(step, described[key]) for step, described in history]) for name, key in keys.items()]
        return Panel(title, Lines(curves), steps, y)

    entropy = Axis("entropy (nats)", (0, 1.03 * math.log(last + 1)))
    depth = Axis("blocks", (0, 1.03 * last), compute_depth_ticks(last, first=0))
    return [
        build_heat_over_steps("Weights over training", shares, "weight", _STATE, first=0),
        lines("Entropy over training", entropy, {"entropy": "entropy"}),
        lines("Depth over training", depth, {"expected depth": "expected_depth", "deepest state": "deepest"}),
    ]


def _format_weight(weight: float, digits: int) -> str:
    """Format a layer weight in percent, or as 0 if it is exactly 0."""
    return make_number_format(digits)(100 * weight) + "%" if weight else "0"


def build_weight_table(weights: Sequence[float]) -> Table:
    """Build the table of the weight of every hidden state."""
    columns = [Column("state", "state n"), Column("weight", "weight", lambda weight: _format_weight(weight, 2))]
    return Table("layers", columns, [{"state": state, "weight": weight} for state, weight in enumerate(weights)])


def _build_history_table(history: Sequence[tuple[int, Mapping[str, Any]]]) -> Table | None:
    if not history:
        return None
    states = range(len(history[0][1]["weights"]))
    columns = [
        Column("step"),
        Column("entropy", "entropy (nats)", make_number_format(3)),
        Column("expected_depth", "expected depth", make_number_format(2)),
        Column("deepest"),
        Column("active"),
        *(Column(f"w{state}", f"w{state}", lambda weight: _format_weight(weight, 1)) for state in states),
    ]
    rows = [
        {"step": step, **described, **{f"w{state}": weight for state, weight in enumerate(described["weights"])}}
        for step, described in subsample(history, _MAX_ROWS)
    ]
    return Table("layers_over_training", columns, rows)


def format_layers(summary: Mapping[str, Any], step: int | None = None) -> str:
    """Format learned layer weights as text: a header, a line per hidden state, and the reason for each absent value.

    The length of a bar is relative to the largest weight. Every positive weight has a visible bar. A weight of exactly
    0 is printed as 0.

    Args:
        summary: Result of `HaltingStatistics.summary` for a task with `layers`.
        step: Number of optimiser steps done, for the header.
    """
    layers = summary["layers"]
    weights = layers["weights"]
    header = [
        f"layers{format_at_step(step)}: entropy {layers['entropy']:.3f} nats ({layers['effective_layers']:.2f} "
        "effective layers)",
        f"expected depth {layers['expected_depth']:.2f}",
        f"blocks that must run {layers['deepest']} of {len(weights) - 1} (deepest state)",
    ]
    cost = describe_cost(summary)
    if "added_parameters" in layers:
        cost.append(f"added parameters {layers['added_parameters']:,}")
    lines = ["; ".join(part) for part in (header, cost) if part]
    return "\n".join([*lines, "", *format_weight_lines(weights), *list_unavailable(summary)])


def format_weight_lines(weights: Sequence[float]) -> list[str]:
    """Return text lines of layer weights: heading, rule, and a line with a bar for every hidden state."""
    head, rule, *rows = to_text(build_weight_table(weights)).splitlines()
    bars = ["#" * math.ceil(_BAR * weight / max(weights)) for weight in weights]
    return [head, rule, *(f"{row}  {bar}".rstrip() for row, bar in zip(rows, bars, strict=True))]


def get_layer_history(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Return (step, layer statistics) of every evaluation recorded in metrics.jsonl."""
    return [(step, describe_layers(weights)) for step, weights in distributions(metrics, WEIGHTS)]


SECTIONS = (SectionEntry(30, build_layer_tiles), SectionEntry(100, build_layers_section))
