"""Rendering of figure panels as SVG text, without scripts or external resources. All text is escaped.

Coordinates are pixels of a drawing with a width of 440, which the page scales to its column.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from adadepth.report.figure import (
    SEPARATOR,
    Axis,
    Bars,
    Boards,
    Cell,
    Dot,
    Figure,
    Heat,
    Lines,
    Mark,
    Panel,
    Points,
    Ranges,
    Scatter,
    Span,
    Stacks,
    subsample,
)
from adadepth.report.style import (
    BAR,
    GRID,
    INK,
    LINES,
    MIDDLE,
    MUTED,
    NONE,
    SPREAD,
    WRONG,
    get_dash,
    get_shape_style,
    get_share_color,
    get_text_color,
)

WIDTH, HEIGHT = 440, 250
_LEFT_MARGIN, _RIGHT_MARGIN, _TOP_MARGIN, _BOTTOM_MARGIN = 58, 16, 12, 40
_FONT_SIZE, _LETTER_WIDTH = 12.0, 0.55  # of letters, and how wide they are for their size
_TITLE_LINE = 13  # between the lines of an axis title
_MAX_DOTS, _MAX_POINTS = 30, 150
_DASHES = ("", "6 3", "2 2", "9 3 2 3", "4 2", "12 4")
_NUMBERED_CELL = (24.0, 14.0)  # least width and height of a cell of a heat map with its share as a number
_GAP, _LINE_GAP, _BOARD_TOP = 24, 10, 20  # between boards, between lines of them, and above them


@dataclass(frozen=True)
class Area:
    """Drawing area of a panel: the range of values, and the pixel positions of its borders."""

    x: Span
    y: Span
    left: float
    right: float
    top: float
    bottom: float

    def across(self, value: float) -> float:
        """Convert an x value to a horizontal pixel position."""
        return self.left + _scale(value, self.x) * (self.right - self.left)

    def up(self, value: float) -> float:
        """Convert a y value to a vertical pixel position."""
        return self.bottom - _scale(value, self.y) * (self.bottom - self.top)


def render_charts(figure: Figure | Sequence[Panel]) -> Markup:
    """Render the panels of a figure side by side, with their headings."""
    panels = figure.panels if isinstance(figure, Figure) else figure
    drawings = Markup("").join(
        Markup("<figure><figcaption>{}</figcaption>{}</figure>\n").format(panel.title, render_chart(panel))
        for panel in panels
    )
    return Markup('<div class="charts">\n{}</div>\n').format(drawings)


def render_chart(panel: Panel) -> Markup:
    """Render one panel with its legend."""
    size = _compute_width(panel), _compute_height(panel)
    chart = _wrap_svg(_draw_panel(panel), panel.description or panel.title, *size)
    measure = f"{panel.mark.measure}:" if isinstance(panel.mark, Heat) else ""
    return chart + _render_entries(_build_legend_entries(panel.mark), measure, isinstance(panel.mark, Heat))


def _compute_height(panel: Panel) -> int:
    """Return the height of a panel without its legend, in pixels."""
    if isinstance(panel.mark, Boards):
        return panel.mark.lines * (_compute_board_height(panel.mark) + _LINE_GAP) - _LINE_GAP
    return round(HEIGHT * panel.tall)


def _compute_width(panel: Panel) -> int:
    """Return the width of a panel, in pixels."""
    return round(WIDTH * panel.wide)


def _draw_panel(panel: Panel) -> str:
    """Return the SVG elements of a panel without its legend."""
    if isinstance(panel.mark, Boards):
        return "".join(_draw_boards(panel.mark))
    assert panel.x is not None, "only boards have no axes"
    assert panel.y is not None, "only boards have no axes"
    width, height = _compute_width(panel), _compute_height(panel)
    labels = max((len(text) for _, text in panel.y.labels()), default=0)
    # room for titles and labels
    lower_edge = height - _BOTTOM_MARGIN - _TITLE_LINE * max(len(_split_title(panel.x, width)) - 1, 0)
    left_edge = max(_LEFT_MARGIN, 14 + _FONT_SIZE * len(_split_title(panel.y, lower_edge)) + 6.7 * labels)
    area = Area(panel.x.span, panel.y.span, left_edge, width - _RIGHT_MARGIN, _TOP_MARGIN, lower_edge)
    return "".join(
        [*_draw_grid(panel, area), *_paint(panel.mark, area), *_draw_axes(panel.x, panel.y, area, width, height)]
    )


def render_sparkline(mark: Mark, x: Span, y: Span, description: str, width: int) -> Markup:
    """Render a small chart without axes, to fit into a table row."""
    area = Area(x, y, 8, width - 8, 2, 20)
    base = f'<path d="M4 {"20.5" if isinstance(mark, Bars) else "11"}H{width - 4}" stroke="{GRID}" stroke-width="1.5"/>'
    return _wrap_svg(base + "".join(_paint(mark, area)), description, width, 22)


def render_swatch_legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Render a legend of coloured squares with names, from pairs (name, colour)."""
    return _render_entries([_build_square_entry(name, color) for name, color in entries])


# ---- axes


def _draw_grid(panel: Panel, area: Area) -> Iterator[str]:
    if isinstance(panel.mark, Heat | Stacks) or panel.y is None:
        return
    for value, _ in panel.y.labels():
        yield f'<path d="M{area.left:g} {area.up(value):.1f}H{area.right}" stroke="{GRID}"/>'


def _draw_axes(x: Axis, y: Axis, area: Area, width: int, height: int) -> Iterator[str]:
    for value, text in y.labels():
        yield _draw_text(area.left - 6, area.up(value) + 4, text, "end")
    for value, text in x.labels():
        yield _draw_text(area.across(value), area.bottom + 16, text)
    yield f'<path d="M{area.left:g} {area.bottom:g}H{area.right}" stroke="{MUTED}"/>'
    for number, line in enumerate(reversed(_split_title(x, width))):
        half = min(_FONT_SIZE * _LETTER_WIDTH * len(line) / 2, width / 2)
        yield _draw_text(min((area.left + area.right) / 2, width - half), height - 6 - _TITLE_LINE * number, line)
    middle = (area.bottom + area.top) / 2
    for number, line in enumerate(_split_title(y, area.bottom)):
        turned = f'transform="translate({11 + _TITLE_LINE * number} {middle:.0f}) rotate(-90)"'
        yield f'<text {turned} text-anchor="middle">{escape(line)}</text>'
    for axis, left, bottom in ((x, area.left, area.bottom), (y, area.left - 4, area.bottom - 4)):
        if axis.is_cut:  # two slanted strokes
            strokes = f"M{left:.1f} {bottom + 4:.1f}l4 -8m2 8l4 -8"
            yield f'<path d="{strokes}" stroke="{MUTED}" stroke-width="1.5" fill="none"/>'


def _split_title(axis: Axis, length: float) -> list[str]:
    """Split the title of an axis into lines of at most `length` pixels, first before the remark on a cut."""
    letters = int(length / (_FONT_SIZE * _LETTER_WIDTH))
    parts = [axis.label] if len(axis.label) <= letters else axis.label.split(SEPARATOR)
    return [line for part in parts for line in textwrap.wrap(part, letters, break_long_words=False)]


def _wrap_svg(content: str, description: str, width: int, height: int) -> Markup:
    """Wrap drawing commands into an SVG with a text alternative."""
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(description)}" '
        f'font-size="12" fill="{MUTED}">{content}</svg>'
    )


def _draw_text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{_px(x)}" y="{_px(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _draw_rectangle(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<path d="M{_px(x)} {_px(y)}h{_px(width)}v{_px(height)}H{_px(x)}z" fill="{color}"/>'


def _px(value: float) -> str:
    """Format a position in tenths of a pixel, without a zero after the point."""
    return f"{value:.1f}".removesuffix(".0")


def _scale(value: float, interval: Span) -> float:
    return (value - interval[0]) / ((interval[1] - interval[0]) or 1.0)


# ---- marks


def _paint(mark: Mark, area: Area) -> Iterator[str]:
    """Return the SVG elements of a panel's content, such as curves or bars."""
    return _PAINTERS[type(mark)](mark, area)


def _paint_lines(mark: Lines, area: Area) -> Iterator[str]:
    for index, members in enumerate(mark.members):
        for points in members:
            look = f'stroke="{LINES[index % len(LINES)]}" stroke-width="1" stroke-opacity=".35"'
            path = _format_points(subsample(points, _MAX_POINTS), area)
            yield f'<polyline points="{path}" fill="none" {look}/>'
    for points, color, dash in ((subsample(points, _MAX_POINTS), *style) for _, points, *style in _style_curves(mark)):
        yield f'<polyline points="{_format_points(points, area)}" fill="none" stroke="{color}" stroke-width="2"{dash}/>'
        if len(points) <= _MAX_DOTS:
            circles = (f'<circle cx="{_px(area.across(x))}" cy="{_px(area.up(y))}" r="3"/>' for x, y in points)
            yield f'<g fill="{color}">{"".join(circles)}</g>'


def _format_points(points: Points, area: Area) -> str:
    return " ".join(f"{_px(area.across(x))},{_px(area.up(y))}" for x, y in points)


def _style_curves(mark: Lines) -> list[tuple[str, Any, str, str]]:
    """Return name, points, colour and dash attribute of each curve that is not empty."""
    styled = []
    for index, (name, points) in enumerate(mark.curves):
        dash = _DASHES[get_dash(index, len(_DASHES))]
        if points:
            styled.append((name, points, LINES[index % len(LINES)], f' stroke-dasharray="{dash}"' if dash else ""))
    return styled


def _paint_bars(mark: Bars, area: Area) -> Iterator[str]:
    width = 0.76 * (area.across(1) - area.across(0))
    for x, y in mark.points:
        if y > area.y[0]:
            top = area.up(y)
            yield _draw_rectangle(area.across(x) - width / 2, top, width, area.bottom - top, BAR)


def _paint_stacks(mark: Stacks, area: Area) -> Iterator[str]:
    width = 0.82 * (area.across(1) - area.across(0))
    for x, shares in enumerate(mark.bars, start=1):
        low = 0.0
        for share, (_, color) in zip(shares, mark.parts, strict=True):
            if share >= 0.0005:
                top = area.up(low + share)
                yield _draw_rectangle(area.across(x) - width / 2, top, width, area.up(low) - top, color)
            low += share
    for x, letter in enumerate(mark.letters, start=1):
        yield _draw_text(area.across(x), area.top - 2, letter)


def _paint_heat(mark: Heat, area: Area) -> Iterator[str]:
    yield '<g class="heat">' + _draw_rectangle(
        area.left, area.top, area.right - area.left, area.bottom - area.top, NONE
    )
    wide, high = area.across(1) - area.across(0) + 0.3, abs(area.up(0) - area.up(1)) + 0.3
    for x, shares in enumerate(mark.columns, start=mark.left):
        cells = (
            _draw_rectangle(0, min(area.up(y + 0.5), area.up(y - 0.5)), wide, high, get_share_color(share))
            for y, share in enumerate(shares, start=mark.bottom)
            if share >= 0.0005
        )
        yield f'<g transform="translate({area.across(x - 0.5):.1f})">{"".join(cells)}</g>'
        if wide >= _NUMBERED_CELL[0] and high >= _NUMBERED_CELL[1]:
            yield from _write_shares(x, shares, mark.bottom, area)
    yield "</g>"


def _write_shares(x: int, shares: Sequence[float], bottom: int, area: Area) -> Iterator[str]:
    """Yield the share of every cell of a heat map's column in percent, in a colour that is readable on the cell."""
    for y, share in enumerate(shares, start=bottom):
        if share >= 0.0005:
            ink = get_text_color(get_share_color(share))
            yield f'<g fill="{ink}">{_draw_text(area.across(x), area.up(y) + 4, f"{100 * share:.0f}")}</g>'


def _paint_scatter(mark: Scatter, area: Area) -> Iterator[str]:
    for points in mark.lines:
        yield f'<polyline points="{_format_points(points, area)}" fill="none" stroke="{MUTED}" stroke-width="1.5"/>'
    circles = "".join(_draw_symbol("circle", area, Dot(x, y), 3) for x, y in mark.background)
    yield f'<g fill="none" stroke="{MUTED}">{circles}</g>'
    for index, (_, dots) in enumerate(mark.groups):
        color, shape = get_shape_style(index)
        rings = "".join(_draw_symbol("circle", area, Dot(dot.x, dot.y), 7) for dot in dots if dot.marked)
        symbols = "".join(_draw_symbol(shape, area, dot, 4) for dot in dots)
        if spreads := "".join(_draw_spread(dot, area) for dot in dots):
            yield f'<path d="{spreads}" stroke="{color}" stroke-width="1.5"/>'
        yield f'<g fill="none" stroke="{MUTED}">{rings}</g><g fill="{color}">{symbols}</g>'


def _draw_spread(dot: Dot, area: Area) -> str:
    """Return the SVG path of error bars through a point."""
    across = f"M{area.across(dot.x - dot.spread_x):.1f} {area.up(dot.y):.1f}H{area.across(dot.x + dot.spread_x):.1f}"
    up = f"M{area.across(dot.x):.1f} {area.up(dot.y - dot.spread_y):.1f}V{area.up(dot.y + dot.spread_y):.1f}"
    return (across if dot.spread_x else "") + (up if dot.spread_y else "")


def _draw_symbol(shape: str, area: Area, dot: Dot, size: float) -> str:
    x, y = area.across(dot.x), area.up(dot.y)
    circle = f'circle cx="{x:.1f}" cy="{y:.1f}" r="{size}"'
    element = circle if shape == "circle" else f'path d="M{x:.1f} {y:.1f}{_get_outline(shape, size)}"'
    return f"<{element}><title>{escape(dot.title)}</title></{element.split()[0]}>" if dot.title else f"<{element}/>"


def _get_outline(shape: str, size: float) -> str:
    """Return the SVG path of a marker shape, relative to its centre."""
    return {
        "circle": f"m-{size} 0a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 -{2 * size} 0z",
        "square": f"m-{size} -{size}h{2 * size}v{2 * size}h-{2 * size}z",
        "triangle": f"m0 -{size * 1.2:g}l{size * 1.2:g} {size * 2.1:g}h-{size * 2.4:g}z",
        "wedge": f"m0 {size * 1.2:g}l{size * 1.2:g} -{size * 2.1:g}h-{size * 2.4:g}z",
        "diamond": f"m0 -{size * 1.3:g}l{size * 1.3:g} {size * 1.3:g}l-{size * 1.3:g} {size * 1.3:g}"
        f"l-{size * 1.3:g} -{size * 1.3:g}z",
    }[shape]


def _paint_ranges(mark: Ranges, area: Area) -> Iterator[str]:
    for row, (low, middle, high) in enumerate(mark.rows):
        y, (x_low, x_middle, x_high) = area.up(row), (area.across(value) for value in (low, middle, high))
        yield f'<path d="M{x_low:.1f} {y:.1f}H{x_high:.1f}" stroke="{SPREAD}" stroke-width="8" stroke-linecap="round"/>'
        yield f'<circle cx="{x_middle:.1f}" cy="{y:.1f}" r="5.5" fill="{MIDDLE}" stroke="#fff" stroke-width="1.5"/>'


_PAINTERS: dict[type, Callable[[Any, Area], Iterator[str]]] = {
    Lines: _paint_lines,
    Bars: _paint_bars,
    Stacks: _paint_stacks,
    Heat: _paint_heat,
    Scatter: _paint_scatter,
    Ranges: _paint_ranges,
}


def _draw_boards(mark: Boards) -> Iterator[str]:
    """Draw boards side by side, scaled to the width of the other charts."""
    side = _compute_cell_side(mark)
    for number, (title, cells) in enumerate(mark.boards):
        line, column = divmod(number, mark.across)
        x, y = column * (mark.columns * side + _GAP), line * (_compute_board_height(mark) + _LINE_GAP)
        yield _draw_text(x + mark.columns * side / 2, y + 13, title)
        yield from _draw_board(mark, cells, x, y + _BOARD_TOP, side)


def _compute_cell_side(mark: Boards) -> float:
    """Return the side length of a board cell in pixels."""
    return (WIDTH - _GAP * (mark.across - 1)) / mark.across / mark.columns


def _compute_board_height(mark: Boards) -> int:
    """Return the height of a board with its title in pixels."""
    return round(mark.rows * _compute_cell_side(mark)) + _BOARD_TOP


def _draw_board(mark: Boards, cells: Sequence[Cell], left: float, top: float, side: float) -> Iterator[str]:
    """Draw a board: filled cells with texts, frames around mistakes, and lines around boxes, in cell units."""
    yield f'<g transform="translate({left:g} {top:g}) scale({side:.3f})" font-size=".55" text-anchor="middle">'
    squares = (f'<path d="M{cell.column} {cell.row}h1v1h-1z" fill="{cell.fill}"/>' for cell in cells)
    yield f'<g stroke="#fff" stroke-width=".03">{"".join(squares)}</g>'
    for cell in cells:
        if cell.text:
            x, y = cell.column + 0.5, cell.row + 0.69
            yield f'<text x="{x:g}" y="{y:g}" fill="{cell.ink}">{escape(cell.text)}</text>'
    for cell in cells:
        if cell.is_wrong:
            low_x, low_y = cell.column + 0.06, cell.row + 0.06
            yield f'<path d="M{low_x:g} {low_y:g}h.88v.88h-.88z" fill="none" stroke="{WRONG}" stroke-width=".08"/>'
    if mark.box:
        rows, columns = mark.borders
        lines = [*(f"M0 {row}h{mark.columns}" for row in rows), *(f"M{column} 0v{mark.rows}" for column in columns)]
        yield f'<path d="{"".join(lines)}" fill="none" stroke="{INK}" stroke-width=".08" stroke-linecap="square"/>'
    yield "</g>"


# ---- legends


class _Entry(NamedTuple):
    """Entry of a legend: its name and the symbol before it."""

    name: str
    drawing: str
    width: int
    height: int


def _build_legend_entries(mark: Mark) -> list[_Entry]:
    """Return the legend entries of a panel's content, or an empty list if there is nothing to distinguish."""
    match mark:
        case Lines():
            styled = _style_curves(mark)
            is_told = len(mark.curves) > 1  # also if a single one of several has points
            return [_build_line_entry(name, color, dash) for name, _, color, dash in styled] if is_told else []
        case Stacks():
            return [_build_square_entry(*part) for part in mark.parts]
        case Scatter():
            styles = ((name, *get_shape_style(index)) for index, (name, _) in enumerate(mark.groups))
            return [_build_shape_entry(name, color, f"M6 6{_get_outline(shape, 4)}") for name, color, shape in styles]
        case Heat():
            shares = ((percent, get_share_color(percent / 100)) for percent in _RAMP)
            return [_build_square_entry(f"{percent}%", color) for percent, color in shares]
        case _:
            return []


_RAMP = (1, 5, 10, 25, 50, 100)


def _build_line_entry(name: str, color: str, dash: str) -> _Entry:
    return _Entry(name, f'<path d="M0 4H26" stroke="{color}" stroke-width="2.5"{dash}/>', 26, 8)


def _build_square_entry(name: str, color: str) -> _Entry:
    edge = f'stroke="{MUTED}" stroke-opacity=".5"'  # a colour near the page's is seen, too
    return _Entry(name, f'<path d="M.5 .5h11v11h-11z" fill="{color}" {edge}/>', 12, 12)


def _build_shape_entry(name: str, color: str, path: str) -> _Entry:
    return _Entry(name, f'<path d="{path}" fill="{color}"/>', 12, 12)


def _render_entries(entries: Sequence[_Entry], measure: str = "", is_heat: bool = False) -> Markup:
    if not entries:
        return Markup("")
    kind = ' class="heat"' if is_heat else ""
    items = (
        f'<span><svg{kind} viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">'
        f"{drawing}</svg>{escape(name)}</span>"
        for name, drawing, width, height in entries
    )
    first = f"<span>{escape(measure)}</span>" if measure else ""
    return Markup(f'<p class="legend">{first}{"".join(items)}</p>')


# ---- files

_MARGIN, _TITLE, _LINE, _LETTER = 20, 26, 20, 6.6  # of a file, in pixels; the last: mean width of a letter


def document(figure: Figure) -> str:
    """Render a figure as a stand-alone SVG file, with title, panels, legend and sample size."""
    rows = -(-len(figure.panels) // figure.columns)
    columns = -(-len(figure.panels) // rows)  # as full as each other
    content, top = [], float(_MARGIN)
    column = max(map(_compute_width, figure.panels)) + 2 * _MARGIN
    for first in range(0, len(figure.panels), columns):
        panels = figure.panels[first : first + columns]
        drawings = [_place_panel(panel, _MARGIN + position * column, top) for position, panel in enumerate(panels)]
        content += [drawing for drawing, _ in drawings]
        top = max(bottom for _, bottom in drawings) + _MARGIN
    width = columns * column
    for line in textwrap.wrap(figure.of, int((width - 2 * _MARGIN) / _LETTER)):
        content.append(_draw_text(_MARGIN, top, line, "start"))
        top += _LINE
    height = round(top)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{MUTED}">'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(content)}</svg>\n'
    )


def _place_panel(panel: Panel, x: float, y: float) -> tuple[str, float]:
    """Return a panel placed at (x, y) in a figure, with the y coordinate of its lower edge."""
    title = f'<text x="0" y="14" font-size="14" font-weight="bold" fill="{INK}">{escape(panel.title)}</text>'
    below = _TITLE + _compute_height(panel)
    measure = [_Entry(f"{panel.mark.measure}:", "", 0, 0)] if isinstance(panel.mark, Heat) else []
    legend, lines = _wrap_legend([*measure, *_build_legend_entries(panel.mark)], below + 8, _compute_width(panel))
    drawing = f'<g transform="translate(0 {_TITLE})">{_draw_panel(panel)}</g>'
    return f'<g transform="translate({x:g} {y:g})">{title}{drawing}{legend}</g>', y + below + lines * _LINE


def _wrap_legend(entries: Sequence[_Entry], top: float, most: int) -> tuple[str, int]:
    """Wrap a legend to the width of a panel in pixels, and return it with its number of lines."""
    x, line, parts = 0.0, 0, []
    for name, drawing, width, height in entries:
        wide = width + 6 + _LETTER * len(name) + 10
        if x and x + wide > most:
            x, line = 0.0, line + 1
        y = top + line * _LINE
        parts.append(f'<g transform="translate({x:.1f} {y + 5 - height / 2:.1f})">{drawing}</g>')
        parts.append(_draw_text(x + width + 6, y + 9, name, "start"))
        x += wide
    return "".join(parts), line + 1 if entries else 0
