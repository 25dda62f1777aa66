"""Small charts as SVG text for the report: no script, no outside resource, text escaped.

Coordinates are in pixels of a 440 wide drawing, which the page scales to its column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from markupsafe import Markup, escape

from adadepth.analysis.render.colors import GRID, LINES, MUTED, ramp, text_on

WIDTH, HEIGHT = 440, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 12, 40
_MAX_DOTS, _MAX_POINTS, _MAX_CELLS = 30, 150, 900

T = TypeVar("T")
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Frame:
    """The plotting area: data ranges, axis titles, and where the ticks are (None: round numbers)."""

    x: tuple[float, float]
    y: tuple[float, float]
    x_title: str
    y_title: str
    x_ticks: Sequence[float] | None = None
    y_ticks: Sequence[float] | None = None
    percent: bool = False
    height: int = HEIGHT
    marks: list[str] = field(default_factory=list)

    def across(self, value: float) -> float:
        """Pixel of an x value."""
        return _LEFT + _share(value, self.x) * (WIDTH - _LEFT - _RIGHT)

    def up(self, value: float) -> float:
        """Pixel of a y value."""
        return self.height - _BOTTOM - _share(value, self.y) * (self.height - _TOP - _BOTTOM)

    def draw(self, description: str, grid: bool = True) -> Markup:
        """The finished SVG; `description` is its text alternative."""
        bottom, right = self.height - _BOTTOM, WIDTH - _RIGHT
        behind, before = [], []
        for value in self.y_ticks if self.y_ticks is not None else ticks(*self.y):
            y = self.up(value)
            if grid:
                behind.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="{GRID}"/>')
            label = f"{100 * value:g}%" if self.percent else short(value)
            before.append(_label(_LEFT - 6, y + 4, label, "end"))
        for value in self.x_ticks if self.x_ticks is not None else ticks(*self.x):
            x = self.across(value)
            before.append(_label(x, bottom + 16, short(value)))
        before.append(f'<path d="M{_LEFT} {bottom}H{right}" stroke="{MUTED}"/>')
        before.append(_label((_LEFT + right) / 2, self.height - 6, self.x_title))
        before.append(
            f'<text transform="translate(11 {(bottom + _TOP) / 2:.0f}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y_title)}</text>"
        )
        return picture("".join([*behind, *self.marks, *before]), description, WIDTH, self.height)


def picture(content: str, description: str, width: int, height: int) -> Markup:
    """Wrap drawing commands into an SVG with a text alternative."""
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(description)}" '
        f'font-size="12" fill="{MUTED}">{content}</svg>'
    )


def _label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rectangle(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<path d="M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z" fill="{color}"/>'


def line_chart(frame: Frame, lines: Sequence[tuple[str, Points]], description: str) -> Markup:
    """Curves with a legend below, each with a dash pattern besides its colour; few points get dots."""
    rows = [(name, thin(points), *_style(index)) for index, (name, points) in enumerate(lines) if points]
    for _, points, color, dash in rows:
        path = " ".join(f"{frame.across(x):.1f},{frame.up(y):.1f}" for x, y in points)
        frame.marks.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        if len(points) <= _MAX_DOTS:
            circles = (f'<circle cx="{frame.across(x):.1f}" cy="{frame.up(y):.1f}" r="3"/>' for x, y in points)
            frame.marks.append(f'<g fill="{color}">{"".join(circles)}</g>')
    legend = legend_of([(name, color, dash) for name, _, color, dash in rows]) if len(rows) > 1 else Markup("")
    return frame.draw(description) + legend


def bar_chart(frame: Frame, bars: Points, color: str, description: str) -> Markup:
    """One bar for every whole x."""
    width = 0.72 * (frame.across(1) - frame.across(0))
    for x, y in bars:
        left, top = frame.across(x) - width / 2, frame.up(y)
        frame.marks.append(_rectangle(left, top, width, frame.up(frame.y[0]) - top, color))
    return frame.draw(description)


def stacked_bars(frame: Frame, bars: Sequence[Sequence[float]], colors: Sequence[str], description: str) -> Markup:
    """Shares on top of each other, the first at the bottom: a bar for every whole x from 1, a colour for each share."""
    width = 0.82 * (frame.across(1) - frame.across(0))
    for x, shares in enumerate(bars, start=1):
        low = 0.0
        for share, color in zip(shares, colors, strict=True):
            if share >= 0.0005:
                top = frame.up(low + share)
                frame.marks.append(_rectangle(frame.across(x) - width / 2, top, width, frame.up(low) - top, color))
            low += share
    return frame.draw(description, grid=False)


def swatch_legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Filled squares with names: (name, colour)."""
    items = (
        f'<span><svg viewBox="0 0 12 12" aria-hidden="true"><path d="M0 0h12v12h-12z" fill="{color}"/></svg>'
        f"{escape(name)}</span>"
        for name, color in entries
    )
    return Markup(f'<p class="legend shapes">{"".join(items)}</p>')


def heat_map(
    columns: Sequence[tuple[int, Sequence[float]]],
    description: str,
    measure: str,
    rows: str,
    first: int = 1,
    max_cells: int = _MAX_CELLS,
) -> Markup:
    """Shares of depths (rows) at evaluations (columns, evenly spaced), on the blue ramp.

    Args:
        columns: (step, shares of the depths from `first`). Of too many, an even selection with the first and the last
            is drawn.
        description: Text alternative.
        measure: What the colour shows.
        rows: Title of the axis of depths.
        first: The lowest depth.
        max_cells: More are not drawn, unless that left fewer than eight columns.
    """
    count = len(columns[0][1])
    last = first + count - 1
    columns = thin(columns, max(max_cells // count, 8))
    frame = Frame(
        (-0.5, len(columns) - 0.5), (first - 0.5, last + 0.5), "optimiser step", rows,
        x_ticks=(), y_ticks=depth_ticks(last, first=first), height=HEIGHT + 20,
    )  # fmt: skip
    wide, high = frame.across(1) - frame.across(0) + 0.3, frame.up(0) - frame.up(1) + 0.3
    for position, (_, shares) in enumerate(columns):
        cells = (
            _rectangle(0, frame.up(depth + 0.5), wide, high, share_color(share))
            for depth, share in enumerate(shares, start=first)
            if share >= 0.0005
        )
        frame.marks.append(f'<g transform="translate({frame.across(position - 0.5):.1f})">{"".join(cells)}</g>')
    for tick in ticks(0, len(columns) - 1, 6, whole=True):
        label = short(columns[int(tick)][0])
        frame.marks.append(_label(frame.across(tick), frame.height - _BOTTOM + 16, label))
    return frame.draw(description, grid=False) + _ramp_legend(measure)


def share_color(share: float) -> str:
    """The ramp's colour of a share: by its square root, so that shares of a few percent still differ."""
    return ramp(math.sqrt(share))


def _ramp_legend(measure: str) -> Markup:
    swatches = "".join(
        f'<i style="background:{share_color(percent / 100)};color:{text_on(share_color(percent / 100))}">{percent}</i>'
        for percent in (1, 5, 10, 25, 50, 75, 100)
    )
    return Markup(f'<p class="legend ramp">{escape(measure)} in %: <span>{swatches}</span></p>')


def class_bar(low: float, mean: float, high: float, max_depth: int) -> Markup:
    """A class's p10 to p90 range and mean on the fixed axis 1..L."""
    x_low, x_mean, x_high = (8 + 164 * _share(value, (1, max_depth)) for value in (low, mean, high))
    return picture(
        f'<path d="M8 11H172" stroke="{GRID}" stroke-width="2"/>'
        f'<path d="M{x_low:.1f} 11H{x_high:.1f}" stroke="{ramp(0.5)}" stroke-width="8" stroke-linecap="round"/>'
        f'<circle cx="{x_mean:.1f}" cy="11" r="5.5" fill="{ramp(1)}" stroke="#fff" stroke-width="1.5"/>',
        f"mean {mean:.2f}, p10 {low:g}, p90 {high:g} on the axis 1 to {max_depth}", 180, 22,
    )  # fmt: skip


def histogram_bar(shares: Sequence[float]) -> Markup:
    """Shares of depths 1..L as a small histogram, scaled to its own highest bar."""
    highest = max(shares) or 1
    width = 120 / len(shares)
    bars = (
        _rectangle(index * width + 0.5, 21 - 20 * share / highest, width - 1, 20 * share / highest, ramp(0.75))
        for index, share in enumerate(shares)
        if share
    )
    drawing = f'{"".join(bars)}<path d="M0 21.5H120" stroke="{MUTED}"/>'
    values = ", ".join(f"{100 * share:.0f}" for share in shares)
    return picture(drawing, f"share of each depth from 1 in %: {values}", 120, 22)


def legend_of(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """Line samples with names: (name, colour, dash attribute)."""
    items = (
        f'<span><svg viewBox="0 0 26 8" aria-hidden="true">'
        f'<path d="M0 4H26" stroke="{color}" stroke-width="2.5"{dash}/></svg>{escape(name)}</span>'
        for name, color, dash in entries
    )
    return Markup(f'<p class="legend">{"".join(items)}</p>')


def _style(index: int) -> tuple[str, str]:
    dashes = ("", "6 3", "2 2", "9 3 2 3", "4 2", "12 4")
    dash = dashes[index % len(dashes)]
    return LINES[index % len(LINES)], f' stroke-dasharray="{dash}"' if dash else ""


def thin(items: Sequence[T], limit: int = _MAX_POINTS) -> list[T]:
    """At most `limit` of the items, evenly chosen, the first and the last among them."""
    if len(items) <= limit:
        return list(items)
    return [items[round(index * (len(items) - 1) / (limit - 1))] for index in range(limit)]


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Round numbers in [low, high], about `count` of them."""
    rough = (high - low) / count or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    step = float(max(math.ceil(step), 1)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def depth_ticks(max_depth: int, count: int = 12, first: int = 1) -> list[float]:
    """Whole depths from `first` to the maximum, about `count`, both ends among them."""
    step = math.ceil((max_depth - first + 1) / count)
    inner = [float(depth) for depth in range(first, max_depth, step) if max_depth - depth >= step]
    return [*inner, float(max_depth)]


def short(value: float) -> str:
    """A number for an axis: thousands as k, millions as M, 10^9 as G, no trailing zeros."""
    for scale, letter in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= scale:
            return f"{value / scale:g}{letter}"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{round(value, 10):g}"


def padded(values: Sequence[float], floor: float | None = None) -> tuple[float, float]:
    """A range around the values with 5 % of air, kept above `floor`."""
    low, high = min(values), max(values)
    air = 0.05 * (high - low) or max(0.05 * abs(high), 1e-3)
    return (low - air if floor is None else max(low - air, floor)), high + air


def _share(value: float, interval: tuple[float, float]) -> float:
    return (value - interval[0]) / ((interval[1] - interval[0]) or 1.0)
