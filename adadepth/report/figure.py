"""Figures as plain data: described once, drawn as SVG (`svg`), from which PNG and PDF are made (`export`).

A figure has panels, a panel has one mark and two axes. A mark says what is drawn, never how: colours, strokes and fonts
are the backends'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")
Points = Sequence[tuple[float, float]]
Curves = Sequence[tuple[str, Points]]
Span = tuple[float, float]

SEPARATOR = " · "  # between the title of an axis and a remark


@dataclass(frozen=True)
class Axis:
    """One axis of a panel.

    Attributes:
        title: Quantity and unit.
        span: The values at its two ends.
        ticks: Labelled values; None: round numbers.
        names: Texts of the ticks instead of their numbers.
        percent: Whether values are shares that are shown in percent.
        start: Lower end of the quantity; an axis that begins above it is marked as cut.
    """

    title: str
    span: Span
    ticks: Sequence[float] | None = None
    names: Sequence[str] | None = None
    percent: bool = False
    start: float = 0.0

    @property
    def is_cut(self) -> bool:
        """Whether the axis leaves out values between the start of its quantity and its own lower end."""
        return self.names is None and min(self.span) > self.start + 1e-12

    @property
    def label(self) -> str:
        """The title, with a remark where the axis is cut."""
        begin = self._written(float(f"{min(self.span):.3g}"))
        return f"{self.title}{SEPARATOR}cut below {begin}" if self.is_cut else self.title

    def _written(self, value: float) -> str:
        return f"{100 * value:g}%" if self.percent else short(value)

    def labels(self) -> list[tuple[float, str]]:
        """Return (value, text) of every tick."""
        positions = ticks(min(self.span), max(self.span)) if self.ticks is None else self.ticks
        if self.names is not None:
            return list(zip(positions, self.names, strict=True))
        return [(value, self._written(value)) for value in positions]


@dataclass(frozen=True)
class Lines:
    """Curves by name, told apart by dashes besides their colour; few points are marked.

    Attributes:
        curves: Name and points of each. One without points keeps the colours of those after it, and is not named.
        members: For each mean curve, the curves that it averages: thin, in its colour.
    """

    curves: Curves
    members: Sequence[Sequence[Points]] = ()


@dataclass(frozen=True)
class Bars:
    """One bar for every whole x."""

    points: Points


@dataclass(frozen=True)
class Stacks:
    """Shares on top of each other, the first at the bottom: a bar for every whole x from 1.

    Attributes:
        bars: The shares of every bar.
        parts: Name and colour of each share.
        letters: A text above every bar.
    """

    bars: Sequence[Sequence[float]]
    parts: Sequence[tuple[str, str]]
    letters: str = ""


@dataclass(frozen=True)
class Heat:
    """Shares as colours.

    Attributes:
        columns: The shares of every column, from y = `bottom`.
        measure: Quantity that the colour shows.
        left: x of the first column.
        bottom: y of the first share of a column.
    """

    columns: Sequence[Sequence[float]]
    measure: str
    left: int = 0
    bottom: int = 0


class Dot(NamedTuple):
    """A point of a scatter plot: where, what a reader who points at it is told, and whether it is marked as special.

    A spread is half the length of the bar through it in that direction.
    """

    x: float
    y: float
    title: str = ""
    marked: bool = False
    spread_x: float = 0.0
    spread_y: float = 0.0


@dataclass(frozen=True)
class Scatter:
    """Points in groups, told apart by shape besides colour.

    Attributes:
        groups: Name and points of each. A marked point gets a ring.
        line: Through some of the points, drawn behind them.
        background: Small open circles behind everything.
    """

    groups: Sequence[tuple[str, Sequence[Dot]]]
    line: Points = ()
    background: Points = ()


@dataclass(frozen=True)
class Ranges:
    """Spread along x, with the middle marked: (low, middle, high) for every whole y from 0."""

    rows: Sequence[tuple[float, float, float]]


class Cell(NamedTuple):
    """How one cell of a board is drawn: where, what it says, on what colour, and whether it is marked as a mistake."""

    row: int
    column: int
    text: str
    fill: str
    ink: str
    is_wrong: bool = False


@dataclass(frozen=True)
class Boards:
    """Boards of squares side by side, each with a title above; they have no axes.

    Attributes:
        boards: Title and cells of each.
        rows: Number of rows of cells of a board.
        columns: Number of columns of a board.
        most: Largest number of boards in a row; 0: all.
        box: Rows and columns of a box that lines enclose; None: no boxes.
    """

    boards: Sequence[tuple[str, Sequence[Cell]]]
    rows: int
    columns: int
    most: int = 0
    box: tuple[int, int] | None = None

    @property
    def borders(self) -> tuple[range, range]:
        """Rows and columns before which a line is drawn: edges of boxes and of the board."""
        rows, columns = self.box or (self.rows, self.columns)
        return range(0, self.rows + 1, rows), range(0, self.columns + 1, columns)

    @property
    def across(self) -> int:
        """Number of boards in a row."""
        return self.most or len(self.boards)

    @property
    def lines(self) -> int:
        """Number of rows of boards."""
        return -(-len(self.boards) // self.across)


Mark = Lines | Bars | Stacks | Heat | Scatter | Ranges | Boards


@dataclass(frozen=True)
class Panel:
    """One drawing.

    Attributes:
        title: Its heading.
        mark: Content of the drawing.
        x: Horizontal axis; boards have none.
        y: Vertical axis; likewise.
        description: Text alternative; none: the title.
        tall: Height as a multiple of the usual one.
    """

    title: str
    mark: Mark
    x: Axis | None = None
    y: Axis | None = None
    description: str = ""
    tall: float = 1.0


@dataclass(frozen=True)
class Figure:
    """Panels that belong together.

    Attributes:
        name: Stem of its files.
        panels: The drawings, row by row.
        columns: Number of panels in a row of a file.
        of: Sample: the number of units, examples or runs.
    """

    name: str
    panels: Sequence[Panel]
    columns: int = 2
    of: str = ""


# ---- axes


def subsample(items: Sequence[_T], limit: int) -> list[_T]:
    """Return at most `limit` of the items, evenly spaced, with the first and the last."""
    if len(items) <= limit:
        return list(items)
    return [items[round(index * (len(items) - 1) / (limit - 1))] for index in range(limit)]


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Return about `count` round numbers in [low, high]."""
    rough = (high - low) / count or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    step = float(max(math.ceil(step), 1)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def compute_depth_ticks(max_updates: int, count: int = 12, first: int = 1) -> list[float]:
    """Return about `count` whole depths from `first` to the maximum, both ends included."""
    step = math.ceil((max_updates - first + 1) / count)
    inner = [float(depth) for depth in range(first, max_updates, step) if max_updates - depth >= step]
    return [*inner, float(max_updates)]


def short(value: float) -> str:
    """Format a number for an axis: thousands as k, millions as M, 10^9 as G, no trailing zeros."""
    for scale, letter in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= scale:
            return f"{value / scale:g}{letter}"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{round(value, 10):g}"


def pad_range(values: Sequence[float], floor: float | None = None) -> Span:
    """Return a range around the values with a margin of 5 %, not below `floor`."""
    low, high = min(values), max(values)
    air = 0.05 * (high - low) or max(0.05 * abs(high), 1e-3)
    return (low - air if floor is None else max(low - air, floor)), high + air


def build_depth_axis(title: str, max_updates: int, first: int = 1, air: float = 0.5) -> Axis:
    """Return the fixed axis of depths from `first` to L, so that runs can be compared."""
    return Axis(title, (first - air, max_updates + air), compute_depth_ticks(max_updates, first=first), start=first)


def build_step_axis(steps: Sequence[int]) -> Axis:
    """Return the axis of optimiser steps, which starts at 0 or before."""
    return Axis("optimiser step", (min(*steps, 0), max(*steps, 1)))


def is_followed(curves: Curves) -> bool:
    """Return whether any curve has two points; a single point is no curve."""
    return any(len(points) > 1 for _, points in curves)


def build_line_panel(
    title: str, curves: Curves, y_title: str, floor: float | None = None, description: str = ""
) -> Panel:
    """Build a panel of curves over optimiser steps."""
    points = [point for _, curve in curves for point in curve]
    x, y = ([values[coordinate] for values in points] for coordinate in (0, 1))
    spans = build_step_axis([int(step) for step in x]), Axis(y_title, pad_range(y, floor), start=floor or 0.0)
    return Panel(title, Lines(curves), *spans, description or f"{title} over training")


_MAX_CELLS = 900


def build_heat_over_steps(
    title: str,
    history: Sequence[tuple[int, Sequence[float]]],
    measure: str,
    y_title: str,
    first: int = 1,
    max_cells: int = _MAX_CELLS,
) -> Panel:
    """Build a heat map of shares of depths, blocks or states (rows) at evaluations (evenly spaced columns).

    Args:
        title: Heading.
        history: (step, shares from `first`). Of too many, an even selection with the first and the last is drawn.
        measure: Quantity that the colour shows.
        y_title: Title of the axis of depths.
        first: The lowest depth.
        max_cells: More are not drawn, unless that left fewer than eight columns.
    """
    count, evaluations = len(history[0][1]), len(history)
    columns = subsample(history, max(max_cells // count, 8))
    positions = ticks(0, len(columns) - 1, 6, whole=True)
    x = Axis(
        "optimiser step", (-0.5, len(columns) - 0.5), positions, [short(columns[int(index)][0]) for index in positions]
    )
    description = f"{title}: {first} to {first + count - 1}, at {evaluations} evaluations"
    y = build_depth_axis(y_title, first + count - 1, first)
    return Panel(title, Heat([shares for _, shares in columns], measure, 0, first), x, y, description, 1.08)
