"""Figures about exits: what `plots` draws for runs that have exits.json or exit_rules.json.

Types of matplotlib are not named here: `plots` is the one module that imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.exits.sections import (
    SHARE,
    axis_title,
    permuted_points,
    step_curves,
    study_axes,
    study_points,
)
from adadepth.analysis.exits.study import score_title
from adadepth.analysis.files import RunFiles
from adadepth.analysis.render.charts import depth_ticks
from adadepth.analysis.render.colors import LINES, MUTED
from adadepth.analysis.render.scatter import MARKERS, shape_style

_DASHES = ("-", "--", ":", "-.")


def draw_steps(figure: Any, files: RunFiles) -> bool:
    """For every evaluated set a row: exit steps with the halting distribution, score and loss of every step."""
    sets = {name: (found, step_curves(found)) for name, found in files.exits.get("sets", {}).items()}
    sets = {name: entry for name, entry in sets.items() if entry[1]}
    if not sets:
        return False
    columns = max(len(curves) for _, curves in sets.values())
    figure.set_size_inches(4.6 * columns, 3.8 * len(sets))
    rows = figure.subplots(len(sets), columns, squeeze=False)
    for panels, (name, (found, curves)) in zip(rows, sets.items(), strict=True):
        for axes in panels[len(curves) :]:
            axes.remove()
        for axes, (title, unit, lines) in zip(panels, curves, strict=False):
            for index, (label, points) in enumerate(lines):
                if points:
                    style = {"linestyle": _DASHES[index % len(_DASHES)], "color": LINES[index % len(LINES)]}
                    axes.plot(*zip(*points, strict=True), marker="o", label=label, **style)
            axes.set_title(f"{name}: {title[0].lower()}{title[1:]}", fontsize=10)
            axes.set(xlabel="step k", ylabel=unit, xlim=(0.4, found["max_steps"] + 0.6))
            axes.set_xticks(depth_ticks(found["max_steps"]))
            if unit == SHARE:
                axes.set_ylim(bottom=0)
            if len(lines) > 1:
                axes.legend(fontsize=8)
    return True


def draw_exit_rules(figure: Any, files: RunFiles) -> bool:
    """For every studied set a row: score against updates, multiply-accumulates and every measured time."""
    studies = files.exit_rules.get("sets", {})
    if not studies:
        return False
    columns = max(len(study_axes(study)) for study in studies.values())
    figure.set_size_inches(4.4 * columns, 4.6 * len(studies))
    rows = figure.subplots(len(studies), columns, squeeze=False)
    for panels, (name, study) in zip(rows, studies.items(), strict=True):
        costs = study_axes(study)
        for axes in panels[len(costs) :]:
            axes.remove()
        for axes, cost in zip(panels, costs, strict=False):
            _scatter(axes, study, cost)
        panels[0].set_title(name)
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 7), fontsize=8.5)
    return True


def _scatter(axes: Any, study: Mapping[str, Any], cost: str) -> None:
    if controls := permuted_points(study, cost):
        x, y = zip(*controls, strict=True)
        axes.plot(x, y, "o", markersize=4, fillstyle="none", color=MUTED, label="exits permuted")
    front = []
    for index, (family, points) in enumerate(study_points(study, cost).items()):
        color, shape = shape_style(index)
        x, y, rows = zip(*points, strict=True)
        axes.plot(x, y, MARKERS[shape], color=color, markersize=5.5, label=family)
        front += [(x, y) for x, y, row in zip(x, y, rows, strict=True) if cost in row["pareto"]]
    if front:
        x, y = zip(*sorted(front), strict=True)
        axes.plot(x, y, "-o", markersize=10, fillstyle="none", color=MUTED, linewidth=1, label="Pareto set", zorder=1)
    axes.set(xlabel=axis_title(cost), ylabel=score_title(study))
