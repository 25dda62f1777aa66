"""The figure of depth by class: what `plots` draws for runs in which tokens or sequences halt.

Types of matplotlib are not named here: `plots` is the one module that imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adadepth.analysis.files import RunFiles
from adadepth.analysis.render.charts import depth_ticks
from adadepth.analysis.render.colors import ramp


def draw_depth_by_class(figure: Any, files: RunFiles) -> bool:
    """Means with p10 to p90, and a histogram for each class."""
    classes = {name: found for name, found in files.halting.get("classes", {}).items() if found.get("n")}
    if not classes:
        return False
    max_depth, unit = files.halting["max_depth"], files.halting["unit"]
    columns = 3
    rows = -(-len(classes) // columns)
    figure.set_size_inches(12.5, max(1.45 * rows, 3.4) + 0.6)
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.25))
    _whiskers(left.subplots(), classes, max_depth)
    panels = right.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, (name, described) in zip(panels, classes.items(), strict=False):
        shares = [100 * count / described["n"] for count in described["histogram"][1:]]
        axes.bar(range(1, max_depth + 1), shares, color=ramp(0.75), width=0.85)
        axes.set_title(f"{name} (n {described['n']:,})", fontsize=8.5, fontweight="normal")
        depth_axis(axes, max_depth, sparse=True)
    for axes in panels[len(classes) :]:
        axes.remove()
    right.suptitle("Distribution of each class", x=0.01, ha="left", fontsize=11, fontweight="bold")
    right.supylabel(f"share of {unit}s (%)", fontsize=10)
    right.supxlabel("depth (updates)", fontsize=10)
    return True


def _whiskers(axes: Any, classes: Mapping[str, Mapping[str, Any]], max_depth: int) -> None:
    for position, described in enumerate(classes.values()):
        axes.plot(
            [described["p10"], described["p90"]], [position] * 2, color=ramp(0.5), linewidth=7, solid_capstyle="round"
        )
        axes.plot(described["mean"], position, "o", color=ramp(1), markersize=7, markeredgecolor="white")
        axes.annotate(
            f"{described['mean']:.2f}", (described["mean"], position - 0.2), ha="center", va="bottom", fontsize=8.5
        )
    axes.set_yticks(range(len(classes)), classes)
    axes.set_ylim(len(classes) - 0.5, -0.7)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("depth (updates)")
    axes.set_title("Depth by class: mean, p10 to p90")
    depth_axis(axes, max_depth)


def depth_axis(axes: Any, max_depth: int, which: str = "x", sparse: bool = False, first: int = 1) -> None:
    """The fixed axis of the depths from `first` to L, so that two runs compare."""
    getattr(axes, f"set_{which}lim")(first - 0.6, max_depth + 0.6)
    getattr(axes, f"set_{which}ticks")(depth_ticks(max_depth, 4 if sparse else 12, first))
