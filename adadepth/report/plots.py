"""Figures as PNG and PDF files, and as a film. The only module that imports matplotlib."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from adadepth.report.figure import (
    Axis,
    Bars,
    Boards,
    Cell,
    Figure,
    Heat,
    Lines,
    Panel,
    Ranges,
    Scatter,
    Stacks,
)
from adadepth.report.style import (
    BAR,
    FONT_FAMILY,
    FONT_WEIGHTS,
    GRID,
    INK,
    LINES,
    MARKER_SHAPES,
    MIDDLE,
    MUTED,
    SPREAD,
    WRONG,
    dash_of,
    ramp,
    shape_style,
    without_shaping,
)
from adadepth.system.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MARKERS = dict(zip(MARKER_SHAPES, ("o", "s", "^", "D", "v"), strict=True))  # matplotlib's names
_WIDTH, _HEIGHT, _FRAME_MILLISECONDS = 5.2, 3.6, 250
_STYLES = ("-", "--", ":", "-.", (0, (4, 2)), (0, (8, 2)))
_AXES = {"titlesize": 11, "titleweight": "bold", "titlelocation": "left", "edgecolor": MUTED, "labelcolor": INK}
_NO_SPINES = {"spines.top": False, "spines.right": False}
_GRID_LINES = {"grid": True, "grid.axis": "y", "axisbelow": True}
_COLOURS = {"text.color": INK, "xtick.color": MUTED, "ytick.color": MUTED, "grid.color": GRID}
_LINES = {"lines.linewidth": 1.8, "lines.markersize": 4, "legend.frameon": False}
_FONTS = {"font.size": 10, "legend.fontsize": 9, "pdf.fonttype": 42}
_LAYOUT = {"use": True, "w_pad": 0.1, "h_pad": 0.08}
_SETTINGS: Any = {
    **{f"axes.{name}": value for name, value in {**_AXES, **_NO_SPINES, **_GRID_LINES}.items()},
    **{f"figure.constrained_layout.{name}": value for name, value in _LAYOUT.items()},
    **_COLOURS,
    **_LINES,
    **_FONTS,
}


def save(figure: Figure, folder: Path) -> list[Path]:
    """Draw a figure into `NAME.png` and `NAME.pdf` of a folder; a reader never sees half of a file.

    Returns:
        The files.
    """
    png, pdf = (folder / f"{figure.name}{suffix}" for suffix in (".png", ".pdf"))
    with _canvas() as canvas:
        from matplotlib.backends.backend_pdf import FigureCanvasPdf

        _lay_out(canvas, figure)
        with _replacing(png) as temporary:  # without `savefig`, which draws everything twice
            cast(Any, canvas.canvas).print_png(temporary)
        canvas.set_layout_engine("none")  # that of the first file is the layout of both
        with _replacing(pdf) as temporary:
            FigureCanvasPdf(canvas).print_pdf(temporary, metadata={"CreationDate": None})  # a function of the figure
    return [png, pdf]


def save_frame(panel: Panel, path: Path) -> None:
    """Draw one panel into a PNG file."""
    save_drawing(lambda canvas: _lay_out(canvas, Figure("frame", [panel], columns=1)), path)


def save_film(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels that differ in their content only into a GIF file, a frame each."""
    import numpy as np
    from PIL import Image

    frames = []
    with _canvas() as canvas, _replacing(path) as temporary:
        canvas.set_dpi(80)
        _lay_out(canvas, Figure("film", panels[:1], columns=1))
        for panel in panels:
            axes = canvas.axes[0]
            axes.clear()
            _draw(axes, panel)
            cast(Any, canvas.canvas).draw()
            canvas.set_layout_engine("none")  # that of the first frame is the layout of all
            frames.append(Image.fromarray(np.array(cast(Any, canvas.canvas).buffer_rgba())).convert("RGB"))
        frames[0].save(temporary, "GIF", save_all=True, append_images=frames[1:], duration=_FRAME_MILLISECONDS, loop=0)


def save_drawing(draw: Callable[[Any], None], path: Path) -> None:
    """Let a function draw on an empty figure of matplotlib, in this project's style, and write it into a PNG file."""
    with _canvas() as canvas, _replacing(path) as temporary:
        draw(canvas)
        canvas.savefig(temporary, format="png")


@contextmanager
def _canvas() -> Iterator[Canvas]:
    """An empty drawing in this project's style."""
    matplotlib: Any = _matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    _add_fonts()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # and not what a matplotlibrc of the user's says
        matplotlib.rcParams.update({**_SETTINGS, "font.family": FONT_FAMILY})
        canvas = Canvas(dpi=150)
        FigureCanvasAgg(canvas)
        yield canvas


@cache
def _matplotlib() -> ModuleType:
    """The library. What it reads when it is imported, and may end in, is an empty matplotlibrc and no MPLBACKEND."""
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        with TemporaryDirectory() as own, chdir(own):
            Path("matplotlibrc").touch()  # the first of several places, of which only one is read
            import matplotlib
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    return matplotlib


@cache
def _add_fonts() -> None:
    """Make the font of all drawings known to matplotlib, in whose cache it is kept."""
    import matplotlib
    from matplotlib import font_manager

    for name, weight in FONT_WEIGHTS.items():
        source = Path(matplotlib.get_data_path(), "fonts", "ttf", name)
        kept = Path(matplotlib.get_cachedir(), f"adadepth-{matplotlib.__version__}-{name}")
        if not kept.exists():
            with _replacing(kept) as temporary:
                temporary.write_bytes(without_shaping(source.read_bytes()))
        font = font_manager.FontEntry(str(kept), name=FONT_FAMILY, weight=weight, size="scalable")
        font_manager.fontManager.ttflist.append(font)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file beside `path`, of the same kind, that takes its place at the end; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        yield temporary


# ---- panels


def _lay_out(canvas: Canvas, figure: Figure) -> None:
    """The panels of a figure, row by row."""
    rows = -(-len(figure.panels) // figure.columns)
    columns = -(-len(figure.panels) // rows)  # as full as each other
    canvas.set_size_inches(columns * max(map(_width, figure.panels)), rows * max(map(_height, figure.panels)))
    places = canvas.subplots(rows, columns, squeeze=False).flatten()
    for axes, panel in zip(places, figure.panels, strict=False):
        _draw(axes, panel)
    for axes in places[len(figure.panels) :]:
        axes.remove()
    if figure.of:
        canvas.supxlabel(figure.of, x=0.01, ha="left", fontsize=8, color=MUTED)


def _width(panel: Panel) -> float:
    if isinstance(panel.mark, Boards):
        return 0.2 * panel.mark.across * (panel.mark.columns + 3)
    return max(_WIDTH, min(1.5 + 0.3 * len(panel.mark.bars), 14)) if isinstance(panel.mark, Stacks) else _WIDTH


def _height(panel: Panel) -> float:
    if isinstance(panel.mark, Boards):
        return 0.2 * (panel.mark.lines * (panel.mark.rows + 2) + 3)
    return _HEIGHT * panel.tall


def _draw(axes: Axes, panel: Panel) -> None:
    """One panel: axes, mark and legend."""
    letters = isinstance(panel.mark, Stacks) and panel.mark.letters
    axes.set_title(panel.title, pad=18 if letters else None, fontsize=9 if isinstance(panel.mark, Boards) else None)
    for axis, which in ((panel.x, "x"), (panel.y, "y")):
        if axis is not None:
            _set_axis(axes, axis, which)
    _PAINTERS[type(panel.mark)](axes, panel.mark)
    handles, names = axes.get_legend_handles_labels()
    if names and not (isinstance(panel.mark, Lines) and len(names) < 2):
        columns = 1 if max(map(len, names)) > 30 else 2 if max(map(len, names)) > 18 else 3
        axes.legend(handles, names, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=min(columns, len(names)))


def _set_axis(axes: Axes, axis: Axis, which: str) -> None:
    at, names = zip(*axis.labels(), strict=True) if axis.labels() else ((), ())
    getattr(axes, f"set_{which}lim")(*axis.span)
    getattr(axes, f"set_{which}ticks")(at, names)
    getattr(axes, f"set_{which}label")(axis.label)


def _paint_lines(axes: Axes, mark: Lines) -> None:
    for index, members in enumerate(mark.members):
        for points in members:
            axes.plot(*zip(*points, strict=True), color=LINES[index % len(LINES)], linewidth=0.8, alpha=0.35)
    for index, (name, points) in enumerate(mark.curves):
        if points:
            marker = "o" if len(points) <= 30 else ""
            style = _STYLES[dash_of(index, len(_STYLES))]
            look: Any = {"linestyle": style, "color": LINES[index % len(LINES)], "marker": marker}
            axes.plot(*zip(*points, strict=True), label=name, clip_on=False, **look)


def _paint_bars(axes: Axes, mark: Bars) -> None:
    across, up = zip(*mark.points, strict=True)
    axes.bar(across, up, color=BAR, width=0.76)


def _paint_stacks(axes: Axes, mark: Stacks) -> None:
    low = [0.0] * len(mark.bars)
    for (name, color), shares in zip(mark.parts, zip(*mark.bars, strict=True), strict=True):
        axes.bar(range(1, len(low) + 1), shares, bottom=low, color=color, width=0.82, label=name)
        low = [below + share for below, share in zip(low, shares, strict=True)]
    for block, letter in enumerate(mark.letters, start=1):
        axes.text(block, 1.01, letter, ha="center", va="bottom", family="monospace", weight="bold")
    axes.grid(visible=False)


def _paint_heat(axes: Axes, mark: Heat) -> None:
    """Shares on the ramp, by their square root, with their scale."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    blues = LinearSegmentedColormap.from_list("depth", ["#ffffff", *(ramp(step / 8) for step in range(9))])
    percent = [[100 * share for share in shares] for shares in mark.columns]
    edges = [
        [start - 0.5 + index for index in range(count + 1)]
        for start, count in ((mark.left, len(percent)), (mark.bottom, len(percent[0])))
    ]
    mesh = axes.pcolormesh(*edges, list(zip(*percent, strict=True)), cmap=blues, norm=PowerNorm(0.5, 0, 100))
    label = f"{mark.measure} (%)"
    bar = cast(Any, axes.figure).colorbar(mesh, ax=axes, ticks=[0, 1, 5, 10, 25, 50, 100], label=label, pad=0.02)
    bar.outline.set_visible(False)
    axes.grid(visible=False)


def _paint_scatter(axes: Axes, mark: Scatter) -> None:
    if mark.background:
        axes.plot(*zip(*mark.background, strict=True), "o", markersize=4, fillstyle="none", color=MUTED)
    if mark.line:
        axes.plot(*zip(*mark.line, strict=True), "-", color=MUTED, linewidth=1, zorder=1)
    if rings := [(dot.x, dot.y) for _, dots in mark.groups for dot in dots if dot.marked]:
        axes.plot(*zip(*rings, strict=True), "o", markersize=10, fillstyle="none", color=MUTED, zorder=1)
    for index, (name, dots) in enumerate(mark.groups):
        color, shape = shape_style(index)
        x, y = [dot.x for dot in dots], [dot.y for dot in dots]
        axes.plot(x, y, MARKERS[shape], color=color, markersize=5.5, label=name)
        spread_x, spread_y = [dot.spread_x for dot in dots], [dot.spread_y for dot in dots]
        if any(spread_x + spread_y):
            axes.errorbar(x, y, spread_y, spread_x, fmt="none", ecolor=color, elinewidth=1.2)


def _paint_ranges(axes: Axes, mark: Ranges) -> None:
    for row, (low, middle, high) in enumerate(mark.rows):
        axes.plot([low, high], [row, row], color=SPREAD, linewidth=7, solid_capstyle="round")
        axes.plot(middle, row, "o", color=MIDDLE, markersize=7, markeredgecolor="white")
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")


def _paint_boards(axes: Axes, mark: Boards) -> None:
    for number, (title, cells) in enumerate(mark.boards):
        line, place = divmod(number, mark.across)
        left, top = place * (mark.columns + 1), line * (mark.rows + 2)
        axes.text(left + mark.columns / 2, top - 0.35, title, ha="center", va="bottom", fontsize=8)
        _paint_board(axes, cells, left, top)
        if mark.box:
            rows, columns = mark.borders
            axes.hlines([top + row for row in rows], left, left + mark.columns, INK, linewidth=1.0)
            axes.vlines([left + column for column in columns], top, top + mark.rows, INK, linewidth=1.0)
    bottom = mark.lines * (mark.rows + 2) - 2
    axes.set(xlim=(0, mark.across * (mark.columns + 1) - 1), ylim=(bottom, -1.2), aspect="equal")
    axes.axis("off")


def _paint_board(axes: Axes, cells: Sequence[Cell], left: float, top: float) -> None:
    """Squares with texts, the first row at the top."""
    from matplotlib.collections import PolyCollection

    def corners(cell: Cell, air: float) -> list[tuple[float, float]]:
        x, y, far = left + cell.column, top + cell.row, 1 - air
        return [(x + air, y + air), (x + far, y + air), (x + far, y + far), (x + air, y + far)]

    fills = [cell.fill for cell in cells]
    axes.add_collection(PolyCollection([corners(c, 0) for c in cells], facecolors=fills, edgecolors="white", lw=0.4))
    wrong = [corners(cell, 0.06) for cell in cells if cell.is_wrong]
    axes.add_collection(PolyCollection(wrong, facecolors="none", edgecolors=WRONG, lw=1.3))
    for cell in cells:
        place = left + cell.column + 0.5, top + cell.row + 0.53
        style: Any = {"ha": "center", "va": "center", "fontsize": 5.5, "color": cell.ink}
        axes.text(*place, cell.text, **style, in_layout=False)


_PAINTERS: dict[type, Callable[[Axes, Any], None]] = {
    Lines: _paint_lines,
    Bars: _paint_bars,
    Stacks: _paint_stacks,
    Heat: _paint_heat,
    Scatter: _paint_scatter,
    Ranges: _paint_ranges,
    Boards: _paint_boards,
}
