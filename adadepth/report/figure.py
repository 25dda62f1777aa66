"""Figures as plain data, which `svg` renders and `export` converts to PNG and PDF.

A figure has panels, and a panel has one mark and two axes. A mark defines what is drawn. The backends define colours,
strokes and fonts.
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
    """One axis of a panel: its title, range and ticks.

    Attributes:
        title: Quantity and unit.
        span: Values at the two ends of the axis.
        ticks: Labelled values, or None for round numbers.
        names: Texts of the ticks, which replace the numbers.
        percent: Whether values are shares to print in percent.
        start: Lowest possible value of the quantity. An axis that begins above it is marked as cut.
    """

    title: str
    span: Span
    ticks: Sequence[float] | None = None
    names: Sequence[str] | None = None
    percent: bool = False
    start: float = 0.0

    @property
    def is_cut(self) -> bool:
        """Whether the axis begins above the lowest possible value of its quantity."""
        return self.names is None and min(self.span) > self.start + 1e-12

    @property
    def label(self) -> str:
        """Title of the axis, with a remark if the axis is cut."""
        begin = self._written(float(f"{min(self.span):.3g}"))
        return f"{self.title}{SEPARATOR}cut below {begin}" if self.is_cut else self.title

    def _written(self, value: float) -> str:
        return f"{100 * value:g}%" if self.percent else short(value)

    def labels(self) -> list[tuple[float, str]]:
        """Return (value, text) of every tick on the axis."""
        positions = ticks(min(self.span), max(self.span)) if self.ticks is None else self.ticks
        if self.names is not None:
            return list(zip(positions, self.names, strict=True))
        return [(value, self._written(value)) for value in positions]


@dataclass(frozen=True)
class Lines:
    """Curves of a panel by name, distinguished by dashes and colours, with markers if a curve has few points.

    Attributes:
        curves: Name and points of each curve. A curve without points has no name in the legend, but keeps its colour.
        members: For each mean curve, the curves that it averages, drawn thin in the same colour.
    """

    curves: Curves
    members: Sequence[Sequence[Points]] = ()


@dataclass(frozen=True)
class Bars:
    """Bar chart of a panel, with one bar for every integer x."""

    points: Points


@dataclass(frozen=True)
class Stacks:
    """Stacked bars of shares in a panel, with one bar for every integer x from 1.

    Attributes:
        bars: Shares of every bar.
        parts: Name and colour of each share.
        letters: One letter for every bar, drawn above it.
    """

    bars: Sequence[Sequence[float]]
    parts: Sequence[tuple[str, str]]
    letters: str = ""


@dataclass(frozen=True)
class Heat:
    """Heat map of shares in a panel.

    Attributes:
        columns: Shares of every column, starting at y = `bottom`.
        measure: Quantity that the colour shows.
        left: x of the first column.
        bottom: y of the first share of a column.
    """

    columns: Sequence[Sequence[float]]
    measure: str
    left: int = 0
    bottom: int = 0


class Dot(NamedTuple):
    """Point of a scatter plot: its position, its hover text, and whether it is highlighted.

    A spread is half the length of the bar through the point in that direction.
    """

    x: float
    y: float
    title: str = ""
    marked: bool = False
    spread_x: float = 0.0
    spread_y: float = 0.0


@dataclass(frozen=True)
class Scatter:
    """Scatter plot of groups of points, which differ in shape and colour.

    Attributes:
        groups: Name and points of each group. A marked point has a ring around it.
        lines: Points of each line that is drawn behind the groups.
        background: Points drawn as small open circles behind everything else.
    """

    groups: Sequence[tuple[str, Sequence[Dot]]]
    lines: Sequence[Points] = ()
    background: Points = ()


@dataclass(frozen=True)
class Ranges:
    """Horizontal ranges of a panel, (low, middle, high) for every integer y from 0, with the middle marked."""

    rows: Sequence[tuple[float, float, float]]


class Cell(NamedTuple):
    """Cell of a drawn board: its position, text and colours, and whether it is marked as a mistake."""

    row: int
    column: int
    text: str
    fill: str
    ink: str
    is_wrong: bool = False


@dataclass(frozen=True)
class Boards:
    """Square boards drawn side by side, such as Sudoku grids, each with a title above it.

    Attributes:
        boards: Title and cells of each board.
        rows: Number of rows of cells of a board.
        columns: Number of columns of a board.
        most: Largest number of boards in a row, or 0 for all.
        box: Rows and columns of a box with lines around it, or None for no boxes.
    """

    boards: Sequence[tuple[str, Sequence[Cell]]]
    rows: int
    columns: int
    most: int = 0
    box: tuple[int, int] | None = None

    @property
    def borders(self) -> tuple[range, range]:
        """Indices of the rows and columns at which a thick line begins: the edges of boxes and of the board."""
        rows, columns = self.box or (self.rows, self.columns)
        return range(0, self.rows + 1, rows), range(0, self.columns + 1, columns)

    @property
    def across(self) -> int:
        """Number of boards drawn side by side in one row."""
        return self.most or len(self.boards)

    @property
    def lines(self) -> int:
        """Number of rows into which the boards are arranged."""
        return -(-len(self.boards) // self.across)


Mark = Lines | Bars | Stacks | Heat | Scatter | Ranges | Boards


@dataclass(frozen=True)
class Panel:
    """One chart of a figure, with a title and axes.

    Attributes:
        title: Heading of the drawing.
        mark: Content of the drawing.
        x: Horizontal axis, or None for boards.
        y: Vertical axis, or None for boards.
        description: Text alternative. If it is empty, the title is used.
        tall: Height as a multiple of the default height.
        wide: Width as a multiple of the default width.
    """

    title: str
    mark: Mark
    x: Axis | None = None
    y: Axis | None = None
    description: str = ""
    tall: float = 1.0
    wide: float = 1.0


@dataclass(frozen=True)
class Figure:
    """Figure of a report: panels that are displayed and saved together.

    Attributes:
        name: Stem of the file names.
        panels: Drawings, row by row.
        columns: Number of panels in a row of the saved file.
        of: Sample size: the number of units, examples or runs.
    """

    name: str
    panels: Sequence[Panel]
    columns: int = 2
    of: str = ""


# ---- axes


def subsample(items: Sequence[_T], limit: int) -> list[_T]:
    """Return at most `limit` items of a list, evenly spaced, including the first and the last."""
    if len(items) <= limit:
        return list(items)
    return [items[round(index * (len(items) - 1) / (limit - 1))] for index in range(limit)]


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Return about `count` round numbers in [low, high] as the ticks of an axis."""
    rough = (high - low) / count or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    step = float(max(math.ceil(step), 1)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def compute_depth_ticks(max_updates: int, count: int = 12, first: int = 1) -> list[float]:
    """Return about `count` integer depths from `first` to the maximum, both included, as the ticks of an axis."""
    step = math.ceil((max_updates - first + 1) / count)
    inner = [float(depth) for depth in range(first, max_updates, step) if max_updates - depth >= step]
    return [*inner, float(max_updates)]


def short(value: float) -> str:
    """Format a number for an axis, with k for thousands, M for millions, G for 10^9, and without trailing zeros."""
    for scale, letter in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= scale:
            return f"{value / scale:g}{letter}"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{round(value, 10):g}"


def pad_range(values: Sequence[float], floor: float | None = None) -> Span:
    """Return a range around the values with a margin of 5 %. The range does not extend below `floor`."""
    low, high = min(values), max(values)
    air = 0.05 * (high - low) or max(0.05 * abs(high), 1e-3)
    return (low - air if floor is None else max(low - air, floor)), high + air


def build_depth_axis(title: str, max_updates: int, first: int = 1, air: float = 0.5) -> Axis:
    """Return the axis of depths from `first` to L. Its range is fixed, so that runs can be compared."""
    return Axis(title, (first - air, max_updates + air), compute_depth_ticks(max_updates, first=first), start=first)


def build_step_axis(steps: Sequence[int]) -> Axis:
    """Return the axis of optimiser steps, which starts at 0 or at a smaller step."""
    first, last = min(*steps, 0), max(*steps, 1)
    return Axis("optimiser step", (first, last), ticks(first, last, whole=True))


def is_followed(curves: Curves) -> bool:
    """Return whether a curve has at least two points, so that it can be drawn as a line."""
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
    """Build a heat map over training: depths, blocks or hidden states as rows, and evaluations as columns.

    Args:
        title: Heading.
        history: Pairs of a step and the shares of depths starting at `first`. If there are too many, evenly spaced
            pairs are drawn, including the first and the last.
        measure: Quantity that the colour shows.
        y_title: Title of the axis of depths.
        first: Lowest depth.
        max_cells: Maximum number of cells. It is exceeded if fewer than eight columns would be left.
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
