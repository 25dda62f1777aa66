"""Scatter plots as SVG text, in the frames of `charts`: groups told apart by shape besides colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from adadepth.analysis.render.charts import Frame, Points
from adadepth.analysis.render.colors import LINES, MUTED


@dataclass(frozen=True)
class Dot:
    """A point of a scatter plot: where, what a reader who points at it is told, and whether it is marked as special."""

    x: float
    y: float
    title: str = ""
    marked: bool = False


def scatter_chart(
    frame: Frame,
    groups: Sequence[tuple[str, Sequence[Dot]]],
    description: str,
    line: Points = (),
    background: Sequence[Dot] = (),
) -> Markup:
    """Groups of points, told apart by shape besides colour, with a legend below.

    Args:
        frame: Ranges and axes.
        groups: Name and points. A marked point gets a ring.
        description: Text alternative.
        line: A line through some of the points, drawn behind them.
        background: Small open circles behind everything.
    """
    if line:
        path = " ".join(f"{frame.across(x):.1f},{frame.up(y):.1f}" for x, y in line)
        frame.marks.append(f'<polyline points="{path}" fill="none" stroke="{MUTED}" stroke-width="1.5"/>')
    open_circles = "".join(_mark("circle", frame, dot, 3) for dot in background)
    frame.marks.append(f'<g fill="none" stroke="{MUTED}">{open_circles}</g>')
    for index, (_, dots) in enumerate(groups):
        color, shape = shape_style(index)
        rings = "".join(_mark("circle", frame, Dot(dot.x, dot.y), 7) for dot in dots if dot.marked)
        marks = "".join(_mark(shape, frame, dot, 4) for dot in dots)
        frame.marks.append(f'<g fill="none" stroke="{MUTED}">{rings}</g><g fill="{color}">{marks}</g>')
    return frame.draw(description) + _shape_legend([name for name, _ in groups])


MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "wedge": "v"}  # matplotlib's names
SHAPES = tuple(MARKERS)


def shape_style(index: int) -> tuple[str, str]:
    """Colour and shape of a group: no two of the first thirty agree in both."""
    return LINES[index % len(LINES)], SHAPES[index % len(SHAPES)]


def _mark(shape: str, frame: Frame, dot: Dot, size: float) -> str:
    x, y = frame.across(dot.x), frame.up(dot.y)
    circle = f'circle cx="{x:.1f}" cy="{y:.1f}" r="{size}"'
    drawn = circle if shape == "circle" else f'path d="M{x:.1f} {y:.1f}{_outline(shape, size)}"'
    return f"<{drawn}><title>{escape(dot.title)}</title></{drawn.split()[0]}>" if dot.title else f"<{drawn}/>"


def _outline(shape: str, size: float) -> str:
    """The rest of a path that begins in the middle of the shape."""
    return {
        "square": f"m-{size} -{size}h{2 * size}v{2 * size}h-{2 * size}z",
        "triangle": f"m0 -{size * 1.2:g}l{size * 1.2:g} {size * 2.1:g}h-{size * 2.4:g}z",
        "wedge": f"m0 {size * 1.2:g}l{size * 1.2:g} -{size * 2.1:g}h-{size * 2.4:g}z",
        "diamond": f"m0 -{size * 1.3:g}l{size * 1.3:g} {size * 1.3:g}l-{size * 1.3:g} {size * 1.3:g}"
        f"l-{size * 1.3:g} -{size * 1.3:g}z",
    }[shape]


def _shape_legend(names: Sequence[str]) -> Markup:
    items = []
    for index, name in enumerate(names):
        color, shape = shape_style(index)
        mark = '<circle cx="6" cy="6" r="4"/>' if shape == "circle" else f'<path d="M6 6{_outline(shape, 4)}"/>'
        items.append(
            f'<span><svg viewBox="0 0 12 12" aria-hidden="true" fill="{color}">{mark}</svg>{escape(name)}</span>'
        )
    return Markup(f'<p class="legend shapes">{"".join(items)}</p>')
