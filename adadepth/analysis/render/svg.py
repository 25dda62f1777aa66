"""Panels as SVG text for the report: no script, no outside resource, text escaped.

Coordinates are in pixels of a 440 wide drawing, which the page scales to its column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from adadepth.analysis.render.colors import (
    BAR,
    GRID,
    LINES,
    MIDDLE,
    MUTED,
    SPREAD,
    WRONG,
    shape_style,
    share_color,
    text_on,
)
from adadepth.analysis.render.figure import (
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
    Ranges,
    Scatter,
    Span,
    Stacks,
    thin,
)

WIDTH, HEIGHT = 440, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 12, 40
_MAX_DOTS, _MAX_POINTS = 30, 150
_DASHES = ("", "6 3", "2 2", "9 3 2 3", "4 2", "12 4")
_GAP, _BOARD_TOP = 24, 20  # between boards and above them


@dataclass(frozen=True)
class Area:
    """Where the mark of a panel lies: the values at its borders, and their pixels."""

    x: Span
    y: Span
    left: float
    right: float
    top: float
    bottom: float

    def across(self, value: float) -> float:
        """Pixel of an x value."""
        return self.left + _share(value, self.x) * (self.right - self.left)

    def up(self, value: float) -> float:
        """Pixel of a y value."""
        return self.bottom - _share(value, self.y) * (self.bottom - self.top)


def charts(figure: Figure | Sequence[Panel]) -> Markup:
    """The panels of a figure beside each other, with their headings."""
    panels = figure.panels if isinstance(figure, Figure) else figure
    drawn = Markup("").join(
        Markup("<figure><figcaption>{}</figcaption>{}</figure>\n").format(panel.title, chart(panel)) for panel in panels
    )
    return Markup('<div class="charts">\n{}</div>\n').format(drawn)


def chart(panel: Panel) -> Markup:
    """One panel with its legend."""
    description = panel.description or panel.title
    if isinstance(panel.mark, Boards):
        return _boards(panel.mark, description)
    assert panel.x is not None, "only boards have no axes"
    assert panel.y is not None, "only boards have no axes"
    height = round(HEIGHT * panel.tall)
    left = max(_LEFT, 14 + 6.7 * max(map(len, panel.y.names or ()), default=0))  # room for the labels
    area = Area(panel.x.span, panel.y.span, left, WIDTH - _RIGHT, _TOP, height - _BOTTOM)
    content = [*_grid(panel, area), *_paint(panel.mark, area), *_axes(panel.x, panel.y, area, height)]
    return _picture("".join(content), description, WIDTH, height) + _legend(panel.mark)


def spark(mark: Mark, x: Span, y: Span, description: str, width: int) -> Markup:
    """A mark without axes, as small as a line of a table."""
    area = Area(x, y, 8, width - 8, 2, 20)
    base = f'<path d="M4 {"20.5" if isinstance(mark, Bars) else "11"}H{width - 4}" stroke="{GRID}" stroke-width="1.5"/>'
    return _picture(base + "".join(_paint(mark, area)), description, width, 22)


def swatch_legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Filled squares with names: (name, colour)."""
    return _shapes_legend([(name, color, "M0 0h12v12h-12z") for name, color in entries])


# ---- axes


def _grid(panel: Panel, area: Area) -> Iterator[str]:
    if isinstance(panel.mark, Heat | Stacks) or panel.y is None:
        return
    for value, _ in panel.y.labels():
        yield f'<path d="M{area.left:g} {area.up(value):.1f}H{area.right}" stroke="{GRID}"/>'


def _axes(x: Axis, y: Axis, area: Area, height: int) -> Iterator[str]:
    for value, text in y.labels():
        yield _label(area.left - 6, area.up(value) + 4, text, "end")
    for value, text in x.labels():
        yield _label(area.across(value), area.bottom + 16, text)
    yield f'<path d="M{area.left:g} {area.bottom:g}H{area.right}" stroke="{MUTED}"/>'
    yield _label((area.left + area.right) / 2, height - 6, x.title)
    middle = (area.bottom + area.top) / 2
    yield f'<text transform="translate(11 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(y.title)}</text>'


def _picture(content: str, description: str, width: int, height: int) -> Markup:
    """Wrap drawing commands into an SVG with a text alternative."""
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(description)}" '
        f'font-size="12" fill="{MUTED}">{content}</svg>'
    )


def _label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rectangle(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<path d="M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z" fill="{color}"/>'


def _share(value: float, interval: Span) -> float:
    return (value - interval[0]) / ((interval[1] - interval[0]) or 1.0)


# ---- marks


def _paint(mark: Mark, area: Area) -> Iterator[str]:
    """The drawing commands of a mark."""
    return _PAINTERS[type(mark)](mark, area)


def _paint_lines(mark: Lines, area: Area) -> Iterator[str]:
    for points, color, dash in ((thin(points, _MAX_POINTS), *style) for _, points, *style in _drawn(mark)):
        path = " ".join(f"{area.across(x):.1f},{area.up(y):.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>'
        if len(points) <= _MAX_DOTS:
            circles = (f'<circle cx="{area.across(x):.1f}" cy="{area.up(y):.1f}" r="3"/>' for x, y in points)
            yield f'<g fill="{color}">{"".join(circles)}</g>'


def _drawn(mark: Lines) -> list[tuple[str, Any, str, str]]:
    """Name, points, colour and dash attribute of the curves that have points."""
    found = []
    for index, (name, points) in enumerate(mark.curves):
        dash = _DASHES[index % len(_DASHES)]
        if points:
            found.append((name, points, LINES[index % len(LINES)], f' stroke-dasharray="{dash}"' if dash else ""))
    return found


def _paint_bars(mark: Bars, area: Area) -> Iterator[str]:
    width = 0.76 * (area.across(1) - area.across(0))
    for x, y in mark.points:
        if y > area.y[0]:
            top = area.up(y)
            yield _rectangle(area.across(x) - width / 2, top, width, area.bottom - top, BAR)


def _paint_stacks(mark: Stacks, area: Area) -> Iterator[str]:
    width = 0.82 * (area.across(1) - area.across(0))
    for x, shares in enumerate(mark.bars, start=1):
        low = 0.0
        for share, (_, color) in zip(shares, mark.parts, strict=True):
            if share >= 0.0005:
                top = area.up(low + share)
                yield _rectangle(area.across(x) - width / 2, top, width, area.up(low) - top, color)
            low += share
    for x, letter in enumerate(mark.letters, start=1):
        yield _label(area.across(x), area.top - 2, letter)


def _paint_heat(mark: Heat, area: Area) -> Iterator[str]:
    wide, high = area.across(1) - area.across(0) + 0.3, abs(area.up(0) - area.up(1)) + 0.3
    for x, shares in enumerate(mark.columns, start=mark.left):
        cells = (
            _rectangle(0, min(area.up(y + 0.5), area.up(y - 0.5)), wide, high, share_color(share))
            for y, share in enumerate(shares, start=mark.bottom)
            if share >= 0.0005
        )
        yield f'<g transform="translate({area.across(x - 0.5):.1f})">{"".join(cells)}</g>'


def _paint_scatter(mark: Scatter, area: Area) -> Iterator[str]:
    if mark.line:
        path = " ".join(f"{area.across(x):.1f},{area.up(y):.1f}" for x, y in mark.line)
        yield f'<polyline points="{path}" fill="none" stroke="{MUTED}" stroke-width="1.5"/>'
    circles = "".join(_symbol("circle", area, Dot(x, y), 3) for x, y in mark.background)
    yield f'<g fill="none" stroke="{MUTED}">{circles}</g>'
    for index, (_, dots) in enumerate(mark.groups):
        color, shape = shape_style(index)
        rings = "".join(_symbol("circle", area, Dot(dot.x, dot.y), 7) for dot in dots if dot.marked)
        symbols = "".join(_symbol(shape, area, dot, 4) for dot in dots)
        yield f'<g fill="none" stroke="{MUTED}">{rings}</g><g fill="{color}">{symbols}</g>'


def _symbol(shape: str, area: Area, dot: Dot, size: float) -> str:
    x, y = area.across(dot.x), area.up(dot.y)
    circle = f'circle cx="{x:.1f}" cy="{y:.1f}" r="{size}"'
    drawn = circle if shape == "circle" else f'path d="M{x:.1f} {y:.1f}{_outline(shape, size)}"'
    return f"<{drawn}><title>{escape(dot.title)}</title></{drawn.split()[0]}>" if dot.title else f"<{drawn}/>"


def _outline(shape: str, size: float) -> str:
    """The rest of a path that begins in the middle of the shape."""
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
        y, (left, centre, right) = area.up(row), (area.across(value) for value in (low, middle, high))
        yield f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="{SPREAD}" stroke-width="8" stroke-linecap="round"/>'
        yield f'<circle cx="{centre:.1f}" cy="{y:.1f}" r="5.5" fill="{MIDDLE}" stroke="#fff" stroke-width="1.5"/>'


_PAINTERS: dict[type, Callable[[Any, Area], Iterator[str]]] = {
    Lines: _paint_lines,
    Bars: _paint_bars,
    Stacks: _paint_stacks,
    Heat: _paint_heat,
    Scatter: _paint_scatter,
    Ranges: _paint_ranges,
}


def _boards(mark: Boards, description: str) -> Markup:
    """Boards side by side, as wide as other charts."""
    width = (WIDTH - _GAP * (len(mark.boards) - 1)) / len(mark.boards)
    side = width / mark.columns
    content = []
    for number, (title, cells) in enumerate(mark.boards):
        left = number * (width + _GAP)
        content += [_label(left + width / 2, 13, title), *_board(cells, left, side)]
    return _picture("".join(content), description, WIDTH, round(mark.rows * side) + _BOARD_TOP)


def _board(cells: Sequence[Cell], left: float, side: float) -> Iterator[str]:
    """Filled squares, their texts, and a frame around what is wrong; the unit of length is a cell."""
    yield f'<g transform="translate({left:g} {_BOARD_TOP}) scale({side:.3f})" font-size=".45" text-anchor="middle">'
    for cell in cells:
        x, y = cell.column, cell.row
        yield f'<path d="M{x} {y}h1v1h-1z" fill="{cell.fill}" stroke="#fff" stroke-width=".03"/>'
        if cell.text:
            yield f'<text x="{x + 0.5}" y="{y + 0.66:g}" fill="{cell.ink}">{escape(cell.text)}</text>'
    for cell in cells:
        if cell.is_wrong:
            low_x, low_y = cell.column + 0.06, cell.row + 0.06
            yield f'<path d="M{low_x:g} {low_y:g}h.88v.88h-.88z" fill="none" stroke="{WRONG}" stroke-width=".12"/>'
    yield "</g>"


# ---- legends


def _legend(mark: Mark) -> Markup:
    """What stands below a drawing."""
    match mark:
        case Lines():
            return _line_legend(mark)
        case Heat():
            return _ramp_legend(mark.measure)
        case Stacks():
            return swatch_legend(mark.parts)
        case Scatter():
            styles = ((name, *shape_style(index)) for index, (name, _) in enumerate(mark.groups))
            return _shapes_legend([(name, color, f"M6 6{_outline(shape, 4)}") for name, color, shape in styles])
        case _:
            return Markup("")


def _line_legend(mark: Lines) -> Markup:
    drawn = _drawn(mark)
    if len(drawn) < 2:
        return Markup("")
    items = (
        f'<span><svg viewBox="0 0 26 8" aria-hidden="true">'
        f'<path d="M0 4H26" stroke="{color}" stroke-width="2.5"{dash}/></svg>{escape(name)}</span>'
        for name, _, color, dash in drawn
    )
    return Markup(f'<p class="legend">{"".join(items)}</p>')


def _shapes_legend(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """Name, colour and path of every shape."""
    items = (
        f'<span><svg viewBox="0 0 12 12" aria-hidden="true" fill="{color}"><path d="{path}"/></svg>'
        f"{escape(name)}</span>"
        for name, color, path in entries
    )
    return Markup(f'<p class="legend shapes">{"".join(items)}</p>')


def _ramp_legend(measure: str) -> Markup:
    swatches = "".join(
        f'<i style="background:{share_color(percent / 100)};color:{text_on(share_color(percent / 100))}">{percent}</i>'
        for percent in (1, 5, 10, 25, 50, 75, 100)
    )
    return Markup(f'<p class="legend ramp">{escape(measure)} in %: <span>{swatches}</span></p>')
