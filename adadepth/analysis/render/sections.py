"""The sections of the report that are drawings and tables of numbers: depth, halting, states, losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from adadepth.analysis.files import RunFiles, depth_histograms, loss_curves, series
from adadepth.analysis.measure.budgets import drawn_quality, quality_points
from adadepth.analysis.measure.sequence_classes import definition
from adadepth.analysis.measure.token_classes import CLASS_DEFINITIONS
from adadepth.analysis.render import charts
from adadepth.analysis.render.colors import ramp

COLLAPSED_SHARE = 0.99
MAX_ROWS = 40


def class_rows(halting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The table of depth by class, with its two drawings; a class without a unit has n = 0 only."""
    rows = []
    define = (
        definition if halting.get("unit") == "sequence" else lambda name: CLASS_DEFINITIONS.get(name, definition(name))
    )
    for name, described in halting.get("classes", {}).items():
        row = {"name": name, "definition": define(name), **described}
        if described["n"]:
            row["bar"] = charts.class_bar(described["p10"], described["mean"], described["p90"], halting["max_depth"])
            row["shape"] = charts.histogram_bar([count / described["n"] for count in described["histogram"][1:]])
        rows.append(row)
    return rows


def depth_over_training(files: RunFiles) -> dict[str, Any] | None:
    """Heat map of depth shares over the evaluations, mean depths of classes, and the evaluations as a table."""
    histograms = depth_histograms(files.metrics)
    if not histograms:
        return None
    shares = [(step, [count / sum(counts) for count in counts[1:]]) for step, counts in histograms]
    collapsed = [step for step, row in shares if max(row) >= COLLAPSED_SHARE]
    depth = len(shares[0][1])
    columns = {key: dict(series(files.metrics, f"halting/{name}")) for key, name in _TRAINING_COLUMNS}
    rows: list[dict[str, Any]] = [
        {"step": step, "top": row.index(max(row)) + 1, "top_share": max(row)}
        | {key: values.get(step) for key, values in columns.items()}
        for step, row in charts.thin(shares, MAX_ROWS)
    ]
    unit = files.halting.get("unit", "token")
    means = [(name, series(files.metrics, f"halting/{name}/mean")) for name in curve_classes(files)]
    frame = charts.Frame(
        steps_range([step for step, _ in shares]), (1, depth), "optimiser step", "mean depth (updates)",
        y_ticks=charts.depth_ticks(depth), height=charts.HEIGHT + 20,
    )  # fmt: skip
    return {
        "heat_map": charts.heat_map(
            shares,
            f"Share of {unit}s at each depth, 1 to {depth}, at {len(shares)} evaluations",
            f"share of {unit}s",
            "depth (updates)",
        ),
        "means": charts.line_chart(frame, means, f"Mean depth of {unit} classes over training"),
        "rows": rows,
        "collapsed": collapsed,
        "collapsed_now": bool(collapsed) and collapsed[-1] == shares[-1][0],
        "count": len(shares),
    }


def curve_classes(files: RunFiles) -> tuple[str, ...]:
    """The classes whose mean depth is drawn over training, at most six."""
    classes = files.halting.get("classes", {})
    by_label = [name for name in classes if name.startswith("label: ")]
    return ("all", "correct", "wrong", *by_label[:3]) if "correct" in classes else ("all", *_TOKEN_CURVES)


_TOKEN_CURVES = ("mask", "plain", "cls", "sep")
_TRAINING_COLUMNS = (("mean", "all/mean"), ("std", "all/std"), ("entropy", "entropy"), ("ponder", "ponder_cost"))


def halting_charts(halting: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """Share, survival, halting probability and loss by depth, as far as there are numbers."""
    steps, unit = halting.get("steps", []), halting.get("unit", "token")
    shares = curve(steps, "depth", "share")
    if not shares:
        return []

    def frame(y: tuple[float, float], x_title: str, y_title: str, percent: bool = True) -> charts.Frame:
        ticks = charts.depth_ticks(len(steps))
        return charts.Frame((0.5, len(steps) + 0.5), y, x_title, y_title, ticks, percent=percent)

    highest = 1.05 * max(share for _, share in shares)
    bars = frame((0, highest), "depth (updates)", f"share of {unit}s")
    by_iteration = [
        (f"{unit}s that run iteration k", curve(steps, "depth", "survival")),
        ("mean halting probability of those", curve(steps, "depth", "probability")),
    ]
    lines = frame((0, 1), "iteration k", "share or probability")
    drawn = [
        ("Depth distribution", charts.bar_chart(bars, shares, ramp(0.75), f"Share of {unit}s at each depth")),
        (
            "Survival and halting probability",
            charts.line_chart(lines, by_iteration, "Survival and halting probability"),
        ),
    ]
    if losses := curve(steps, "depth", "loss"):
        span = charts.padded([value for _, value in losses], floor=0.0)
        by_depth = frame(span, "depth (updates)", loss_by_depth_title(unit), percent=False)
        drawn.append(("Loss by depth", charts.line_chart(by_depth, [("loss", losses)], "Mean loss at each depth")))
    return drawn


def loss_by_depth_title(unit: str) -> str:
    """Title of the axis: a sequence may be labelled with a value, whose loss is no entropy."""
    return "mean loss" if unit == "sequence" else "mean loss (nats)"


def cosine_charts(halting: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """Similarity of the states before and after each iteration, in its two versions."""
    lines = cosine_curves(halting)
    values = [value for curves in lines.values() for _, points in curves for _, value in points]
    if not values:
        return []
    depth, low = halting["max_depth"], min(charts.padded(values)[0], 0.95)
    drawn = []
    for title, curves in lines.items():
        frame = charts.Frame(
            (0.5, depth + 0.5), (low, 1.0), "iteration k", "mean cosine similarity", charts.depth_ticks(depth)
        )
        drawn.append((title, charts.line_chart(frame, curves, f"Cosine similarity. {title}")))
    return drawn


def cosine_curves(halting: Mapping[str, Any]) -> dict[str, list[tuple[str, list[tuple[int, float]]]]]:
    """By title of the version: a curve over iterations for every group."""
    titles = {"running": "Over units that run the iteration", "all": "Over all units (a halted state counts 1)"}
    groups = halting.get("cosine", {})
    return {
        title: [(name, curve(rows, "step", version)) for name, rows in groups.items()]
        for version, title in titles.items()
    }


def curve(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> list[tuple[int, float]]:
    """The points (x, y) of the rows that have a y."""
    return [(row[x], row[y]) for row in rows if y in row]


def loss_charts(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, Markup]]:
    """A chart for every loss, training and evaluation in one."""
    drawn = []
    for name, lines in loss_curves(metrics).items():
        points = [point for _, line in lines for point in line]
        frame = charts.Frame(
            steps_range([step for step, _ in points]), charts.padded([value for _, value in points]),
            "optimiser step", loss_unit(name),
        )  # fmt: skip
        heading = loss_title(name)
        drawn.append((heading, charts.line_chart(frame, lines, f"{heading} over training")))
    return drawn


def loss_title(name: str) -> str:
    """`mlm_loss` as MLM loss."""
    first, *rest = name.split("_")
    return " ".join([first.upper() if first in ("lm", "mlm", "sop", "kl") else first.capitalize(), *rest])


def loss_unit(name: str) -> str:
    """What a loss is measured in: cross-entropies in nats, the others as they enter the total."""
    return "nats" if name in ("lm_loss", "mlm_loss", "sop_loss") else "weighted loss"


def budget_chart(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, Markup]]:
    """How a budget was held in training: its target with the measured depth, and the multiplier."""
    curves = budget_curves(metrics)
    drawn = []
    for title, lines in curves.items():
        points = [point for _, line in lines for point in line]
        frame = charts.Frame(
            steps_range([step for step, _ in points]), charts.padded([value for _, value in points]),
            "optimiser step", BUDGET_AXES[title],
        )  # fmt: skip
        drawn.append((title, charts.line_chart(frame, lines, f"{title} over training")))
    return drawn


BUDGET_AXES = {"Budget and depth": "mean depth, in the budget's unit", "Price of an update": "multiplier"}


def budget_curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, list[tuple[int, float]]]]]:
    """By title the curves of a run with a budget; empty without one."""
    names = {"Budget and depth": ("target", "measured"), "Price of an update": ("multiplier",)}
    curves = {title: [(name, series(metrics, f"budget/{name}")) for name in parts] for title, parts in names.items()}
    return {title: lines for title, lines in curves.items() if any(points for _, points in lines)}


def targets_chart(found: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """Quality against depth of one checkpoint whose depth was set to several targets."""
    points = quality_points(found) if found else []
    if not points:
        return []
    name = drawn_quality(found)
    frame = charts.Frame(
        charts.padded([x for x, _ in points], floor=0.0), charts.padded([y for _, y in points]),
        f"mean depth ({found['unit']})", str(name).replace("_", " "),
    )  # fmt: skip
    title = f"{loss_title(str(name))} against depth"
    return [(title, charts.line_chart(frame, [("", points)], title))]


def steps_range(steps: Sequence[int]) -> tuple[float, float]:
    """The axis of optimiser steps, from 0 or before."""
    return (min(*steps, 0), max(*steps, 1))
