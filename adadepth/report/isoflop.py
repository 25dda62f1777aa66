"""Report section on quality against size at equal training compute (isoFLOP) for a grid of language models.

Training compute is C = 6 M T floating-point operations: T training tokens times M multiply-accumulates of a token at
full depth with one prediction, of two operations each, and twice as much in the backward pass (Kaplan et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adadepth.metrics.unit_costs import format_count
from adadepth.report.figure import Axis, Dot, Figure, Panel, Scatter, pad_range
from adadepth.report.run_files import RunFiles, get_run_unit
from adadepth.report.run_groups import Comparison, Group, final, get_compared_quality
from adadepth.report.section import Section, fill
from adadepth.report.table import Column, Table, make_number_format, text

FEWEST_BUDGETS, FEWEST_SIZES = 4, 5
_TOLERANCE = 0.1  # relative difference in training compute up to which runs have the same budget
SIZE = "parameters_without_embeddings"


def compute_training_operations(run: RunFiles) -> float | None:
    """Return the floating-point operations C = 6 M T of a training run on packed text, or None if they are unknown."""
    trainer, halting = run.config.get("trainer") or {}, run.halting
    length: Any = (run.config.get("dataset") or {}).get("sequence_length")
    steps, full = (run.run.get("steps") or {}).get("done"), (halting.get("cost") or {}).get("full_macs")
    if get_run_unit(run) != "token" or not (steps and full and length and halting.get("n")):
        return None
    rows = trainer.get("per_device_train_batch_size", 1) * trainer.get("gradient_accumulation_steps", 1)
    rows *= (run.run.get("hardware") or {}).get("processes", 1)
    macs: float = full / halting["n"] + halting.get("prediction_macs", 0.0)
    operations: float = 6.0 * macs * steps * rows * length
    return operations


def build_isoflop_section(comparison: Comparison, folder: Path) -> Section | None:
    """Build the section if runs have enough budgets of training compute, each with enough sizes, else return None."""
    quality = get_compared_quality(comparison)
    if quality is None or comparison.other_data:
        return None
    points = (_describe_point(entry, quality.name) for entry in comparison.groups)
    budgets = _group_budgets([point for point in points if point is not None])
    if len(budgets) < FEWEST_BUDGETS:
        return None
    best = min if quality.less_is_better else max
    rows = []
    for name, of_budget in budgets.items():
        minimum = best(of_budget, key=lambda point: point["quality"])
        is_interior = of_budget[0][SIZE] < minimum[SIZE] < of_budget[-1][SIZE]
        remark = "minimum" if is_interior else "at the edge: no minimum"
        rows += [{**point, "budget": name, "best": remark if point is minimum else None} for point in of_budget]
    figure = _draw(rows, quality.name, list(budgets))
    columns = [
        Column("budget", "training compute (FLOPs)", text, "text"),
        Column("label", "run", text, "text"),
        Column("operations", where="file"),
        Column(SIZE, "non-embedding parameters", "{:,}".format),
        Column("quality", quality.name, make_number_format(4)),
        Column("best", "", text, "text"),
    ]
    table = Table("isoflop", columns, rows)
    html = fill("compared:isoflop", figure=figure, table=table, quality=quality, tolerance=_TOLERANCE)
    return Section("Quality against size at equal training compute", "isoflop", html, [figure], [table])


def _describe_point(entry: Group, metric: str) -> dict[str, Any] | None:
    """Return size, training compute and mean quality of a group of runs, or None if one of them is unknown."""
    run, figure = entry.runs[0], entry.figure(metric)
    operations, size = compute_training_operations(run), run.run.get(SIZE)
    if operations is None or not size or figure is None:
        return None
    point = {"label": entry.label, SIZE: size, "operations": operations, "quality": figure["mean"]}
    return {**point, "raw": [final(run)[metric] for run in entry.runs if metric in final(run)]}


def _group_budgets(points: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group points whose compute exceeds that of the cheapest one by at most the tolerance; each sorted by size.

    Budgets with too few sizes are left out.
    """
    budgets: list[list[dict[str, Any]]] = []
    for point in sorted(points, key=lambda point: point["operations"]):
        if not budgets or point["operations"] > (1 + _TOLERANCE) * budgets[-1][0]["operations"]:
            budgets.append([])
        budgets[-1].append(point)
    return {
        format_count(math.fsum(point["operations"] for point in budget) / len(budget)): sorted(
            budget, key=lambda point: int(point[SIZE])
        )
        for budget in budgets
        if len({point[SIZE] for point in budget}) >= FEWEST_SIZES
    }


def _draw(rows: list[dict[str, Any]], metric: str, budgets: list[str]) -> Figure:
    """Draw all points over the logarithm of the size, with a line for every budget and a ring at interior minima."""

    def build_dot(row: Mapping[str, Any]) -> Dot:
        title = f"{row['label']}: {metric} {row['quality']:.4f} at {row[SIZE]:,} parameters"
        return Dot(math.log10(row[SIZE]), row["quality"], title, marked=row["best"] == "minimum")

    groups = [(f"{name} FLOPs", [build_dot(row) for row in rows if row["budget"] == name]) for name in budgets]
    sizes = sorted({row[SIZE] for row in rows})
    ticks, names = [math.log10(size) for size in sizes], [format_count(size) for size in sizes]
    x = Axis("non-embedding parameters (logarithmic)", pad_range(ticks), ticks, names)
    raw = [(math.log10(row[SIZE]), value) for row in rows for value in row["raw"]]
    y = Axis(metric, pad_range([value for _, value in raw]))
    scatter = Scatter(groups, [[(dot.x, dot.y) for dot in dots] for _, dots in groups], raw)
    description = f"{metric} against non-embedding parameters for {len(budgets)} budgets of training compute"
    return Figure("isoflop", [Panel("isoFLOP", scatter, x, y, description, 1.3, 1.4)], columns=1)
