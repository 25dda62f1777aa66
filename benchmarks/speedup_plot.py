"""Figure of measured speed-ups of ragged execution against the ideal ones (needs matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adadepth.report.style import GRID, INK, LINES, MARKER_SHAPES, MUTED

Group = tuple[int, int, int]
_MODES = {"inference": "Inference", "training": "Training step"}
_MARKERS = dict(zip(MARKER_SHAPES, ("o", "s", "^", "D", "v"), strict=True))  # matplotlib's names
_TICKS = (0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24)
_SHARE = 0.85  # of the ideal speed-up, beside which the measured ones are read


def save_speedups(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the rows of one or several measurements into a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(dpi=150, layout="constrained")
    draw_speedups(figure, rows)
    figure.savefig(path)


def draw_speedups(figure: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw measured against ideal speed-up over the dense execution, one panel a mode, on logarithmic scales.

    Colours are widths, shapes are batch sizes, and open marks are texts longer than the shortest measured. Points of
    one ideal speed-up are drawn beside each other.
    """
    modes = [mode for mode in _MODES if any(row["mode"] == mode for row in rows)]
    figure.set_size_inches(4.6 * len(modes), 5.4)
    groups = sorted({_get_group(row) for row in rows})
    low = 0.92 * min(1.0, *(row["ragged"]["speedup"] for row in rows))
    high = 1.12 * max(max(row["ideal"], row["ragged"]["speedup"]) for row in rows)
    panels = figure.subplots(1, len(modes), sharey=True, squeeze=False).flatten()
    for axes, mode in zip(panels, modes, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(xscale="log", yscale="log", title=_MODES[mode], xlabel="ideal: deepest / mean depth")
        _draw_guides(axes, low, high)
        for index, group in enumerate(groups):
            beside = 1 + 0.006 * (index - (len(groups) - 1) / 2)
            matches = [row for row in rows if row["mode"] == mode and _get_group(row) == group]
            points = [(beside * row["ideal"], row["ragged"]["speedup"]) for row in matches]
            across, up = zip(*points, strict=True) if points else ((), ())
            axes.plot(across, up, linestyle="none", markersize=6, **_choose_style(group, groups))
    panels[0].set_ylabel("measured: dense / ragged time")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9, frameon=False
    )


def _draw_guides(axes: Any, low: float, high: float) -> None:
    """Set the scales, and draw lines of the ideal speed-up, of a share of it, and of none."""
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    for share, style, label in ((1.0, "-", "ideal"), (_SHARE, "--", f"{_SHARE:.0%} of ideal")):
        axes.plot([1, high], [share, share * high], color=MUTED, linewidth=1.2, linestyle=style, label=label)
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":", label="as fast as dense")
    axes.set(xlim=(0.95, high), ylim=(low, high))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="both", color=GRID)


def _get_group(row: Mapping[str, Any]) -> Group:
    return row["hidden"], row["batch"], row["length"]


def _choose_style(group: Group, groups: Sequence[Group]) -> dict[str, str]:
    """Return marker, colour and label of a width, batch size and length."""
    widths, batches, lengths = (sorted(set(values)) for values in zip(*groups, strict=True))
    hidden, batch, length = group
    color = LINES[widths.index(hidden) % len(LINES)]
    return {
        "marker": _MARKERS[MARKER_SHAPES[batches.index(batch) % len(MARKER_SHAPES)]],
        "color": color,
        "markerfacecolor": color if length == lengths[0] else "white",
        "label": f"H {hidden}, batch {batch}, length {length}",
    }
