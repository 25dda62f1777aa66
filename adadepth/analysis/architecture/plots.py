"""Figures about architectures: what `plots` draws of a search, and of networks compared.

Types of matplotlib are not named here: `plots` is the one module that imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adadepth.analysis.architecture.comparison import quality_points
from adadepth.analysis.architecture.search import architecture_history, is_fixed
from adadepth.analysis.architecture.sections import BLOCK, OPERATION_TITLES, heat_map_columns
from adadepth.analysis.files import RunFiles
from adadepth.analysis.render.charts import depth_ticks
from adadepth.analysis.render.colors import GRID, OPERATION_COLORS
from adadepth.analysis.render.scatter import MARKERS, shape_style

Columns = Sequence[tuple[int, Sequence[float]]]


def search_history(files: RunFiles) -> list[tuple[int, dict[str, Any]]]:
    """The evaluations of a search; none of a network that has nothing to choose."""
    described = files.halting.get("architecture")
    return [] if described is None or is_fixed(described) else architecture_history(files.metrics)


def draw_gates(figure: Any, files: RunFiles, heat_map: Callable[[Any, Columns, str], None]) -> bool:
    """The probability of each operation, and the entropy, by block and evaluation."""
    columns = heat_map_columns(search_history(files))
    if not columns:
        return False
    figure.set_size_inches(12, 7.6)
    for axes, (title, measure, shares) in zip(figure.subplots(2, 2).flatten(), columns, strict=True):
        heat_map(axes, shares, f"{measure} (%)")
        axes.set(title=title, ylabel=BLOCK)
    return True


def draw_frame(figure: Any, described: Mapping[str, Any], step: int) -> bool:
    """The probabilities of every block as stacked bars, with the operation that each would get.

    A figure that has been drawn before keeps its axes where they are, as the next frame of a film needs it.
    """
    blocks = described["blocks"]
    if not figure.axes:
        figure.set_size_inches(min(max(6.5, 1.5 + 0.3 * blocks), 14), 3.6)
        figure.subplots()
    axes = figure.axes[0]
    axes.clear()
    low = [0.0] * blocks
    columns = zip(*described["probabilities"], strict=True)
    for title, color, shares in zip(OPERATION_TITLES, OPERATION_COLORS, columns, strict=True):
        percent = [100 * share for share in shares]
        axes.bar(range(1, blocks + 1), percent, bottom=low, color=color, width=0.82, label=title)
        low = [below + share for below, share in zip(low, percent, strict=True)]
    for block, letter in enumerate(described["string"], start=1):
        axes.text(block, 101, letter, ha="center", va="bottom", family="monospace", weight="bold")
    temperature = described["temperature"]
    told = "" if temperature is None else f", temperature {temperature:.3f}"
    axes.set_title(f"Step {step:,}: mean entropy {described['mean_entropy']:.3f} nats{told}", pad=18)
    axes.set(xlabel=BLOCK, ylabel="probability (%)", xlim=(0.4, blocks + 0.6), ylim=(0, 100))
    axes.set_xticks(depth_ticks(blocks, 16))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    return True


def draw_comparison(figure: Any, files: RunFiles) -> bool:
    """Perplexity against measured time, or multiply-accumulates, for every evaluated set and shape."""
    drawings = quality_points(files.architectures) if files.architectures.get("rows") else []
    if not drawings:
        return False
    figure.set_size_inches(5.6 * min(len(drawings), 3), 4.4 * -(-len(drawings) // 3) + 0.4)
    panels = figure.subplots(-(-len(drawings) // 3), min(len(drawings), 3), squeeze=False).flatten()
    for axes, (title, cost, points) in zip(panels, drawings, strict=False):
        for index, (x, y, row) in enumerate(points):
            color, shape = shape_style(index)
            axes.plot(x, y, MARKERS[shape], color=color, markersize=7, linestyle="none", label=row["label"])
        axes.set(title=title, xlabel=cost, ylabel="perplexity per token")
        axes.grid(axis="x", color=GRID)
    for axes in panels[len(drawings) :]:
        axes.remove()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), fontsize=9)
    return True
