"""Renderings of one description: figures as SVG, PNG and PDF; tables as HTML, text, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from adadepth.report import export
from adadepth.report.figure import (
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
    Stacks,
    build_step_axis,
)
from adadepth.report.svg import document, render_chart, render_charts
from adadepth.report.table import (
    Column,
    Table,
    format_csv,
    format_sparkline,
    make_number_format,
    percent,
    text,
    to_csv,
    to_html,
    to_latex,
    to_records,
    to_text,
)
from tests.figures_support import find_inked_pixels
from tests.marks_support import keep_one_quick
from tests.pages_support import Page

EVIL = "<b>&'\"</b>"
MARKS: dict[str, Mark] = {
    "lines": Lines([(EVIL, [(0, 0.1), (1, 0.9)]), ("empty", []), ("other", [(0, 0.5), (2, 0.2)])]),
    "bars": Bars([(0, 0.2), (1, 0.5), (2, 1.0)]),
    "stacks": Stacks([[0.2, 0.8], [1.0, 0.0]], [(EVIL, "#123f7c"), ("b", "#e69f00")], "ab"),
    "heat": Heat([[0.2, 0.8], [1.0, 0.0]], EVIL, 1, 0),
    "scatter": Scatter(
        [(EVIL, [Dot(0.5, 0.5, EVIL, marked=True)]), ("b", [Dot(1, 0.1)])], [[(0, 0), (1, 1)]], [(1, 1)]
    ),
    "ranges": Ranges([(0, 0.5, 1), (1, 1, 1)]),
    "boards": Boards([(EVIL, [Cell(0, 0, EVIL, "#ffffff", "#000000", is_wrong=True)]), ("b", [])], 1, 1),
    "boards_below": Boards([(EVIL, [Cell(0, 0, EVIL, "#ffffff", "#000000")]), ("b", []), ("c", [])], 1, 1, most=2),
}


def make_panel(mark: Mark) -> Panel:
    if isinstance(mark, Boards):
        return Panel(EVIL, mark)
    names = Axis("", (1.5, -0.5), (0, 1), (EVIL, "b")) if isinstance(mark, Ranges) else Axis(EVIL, (0, 1), percent=True)
    return Panel(EVIL, mark, Axis(EVIL, (-0.5, 2.5)), names)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", MARKS)
def test_every_mark_is_drawn_and_escaped(tmp_path: Path, name: str) -> None:
    figure = Figure(name, [make_panel(MARKS[name])])
    (tmp_path / "page.html").write_text("<main>" + render_charts(figure) + "</main>", encoding="utf-8")
    page = Page(tmp_path / "page.html")  # every element is closed in order
    assert "b" not in {tag for tag, _ in page.tags}
    assert EVIL in page.text
    png, pdf = export.save_figure(figure, tmp_path)
    assert (png.name, pdf.name) == (f"{name}.png", f"{name}.pdf")
    assert find_inked_pixels(png).any()
    assert pdf.read_bytes().startswith(b"%PDF")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["page.html", png.name, pdf.name])


def test_a_figure_depends_on_its_description_alone(tmp_path: Path) -> None:
    figure = Figure("lines", [make_panel(MARKS["lines"])])
    first = [path.read_bytes() for path in export.save_figure(figure, tmp_path / "a")]
    assert [path.read_bytes() for path in export.save_figure(figure, tmp_path / "b")] == first
    assert render_chart(figure.panels[0]) == render_chart(figure.panels[0])


def test_a_long_note_is_wrapped_inside_the_margins_of_a_figure(tmp_path: Path) -> None:
    axis = Axis("x", (0, 1))
    note = "bars: 95 % intervals over seeds and sequences; compute without predictions at exits"
    panels = [Panel("title", Scatter([("a", [Dot(0.5, 0.5)])]), axis, axis, wide=0.75)]
    export.save_figure(Figure("noted", panels, columns=1, of=note), tmp_path)
    ink = find_inked_pixels(tmp_path / "noted.png")
    assert not ink[:, -15:].any()
    assert not ink[-6:].any()
    lines = re.findall(r'<text[^>]*text-anchor="start">([^<]*)</text>', document(Figure("noted", panels, of=note)))
    assert " ".join(lines[1:]) == note, "the first is that of the legend"


def test_boards_are_wrapped_to_lines() -> None:
    """Draw five boards, two beside each other: three lines of one height, the last board at the left again."""
    boards = [(f"step {number}", [Cell(0, 0, "1", "#ffffff", "#000000")]) for number in range(5)]
    one_line, lines = (str(render_chart(Panel("", Boards(boards, 3, 3, most)))) for most in (0, 2))
    (left_edge, first), (right, same), (_, second), _, (back, third) = (
        (float(x), float(y)) for x, y in re.findall(r"translate\(([\d.]+) ([\d.]+)\)", lines)
    )
    assert left_edge == back == 0 < right
    assert first == same
    assert third - second == second - first > (right - left_edge) * 0.8
    assert len(set(re.findall(r"translate\([\d.]+ ([\d.]+)\)", one_line))) == 1


@pytest.mark.parametrize("title", ["mean depth, in the unit of the budget of this run", "loss", "a" * 40 + " loss"])
def test_a_long_title_beside_a_chart_is_wrapped_to_its_height(title: str) -> None:
    y = Axis(title, (3, 4))  # the axis does not begin at 0
    drawing = str(render_chart(Panel("", Bars([(0, 3.5)]), Axis("", (0, 1)), y)))
    lines = re.findall(r"rotate\(-90\)\"[^>]*>([^<]*)<", drawing)
    assert " ".join(lines).replace(" · ", " ") == f"{title} starts at 3"
    letters = (250 - 40) / (12 * 0.55)  # in the height of a chart without its lower margin
    assert all(len(line) <= letters or " " not in line for line in lines)
    left_edge = float(re.findall(r"<path d=\"M([\d.]+) ", drawing)[0])
    assert left_edge >= 14 + 12 * len(lines), "the plot begins beside its title"


def test_a_legend_names_the_only_curve_of_several_that_has_points() -> None:
    curves = Lines([("train", []), ("eval", [(0, 1), (1, 2)])])
    assert ">eval<" in str(render_chart(Panel("", curves, Axis("x", (0, 1)), Axis("y", (0, 2)))))


def test_optimiser_steps_are_integers() -> None:
    assert [text for _, text in build_step_axis([0, 2]).labels()] == ["0", "1", "2"]


COLUMNS = [
    Column("name", "name", text, "text", remark="definition"), Column("share", "share", percent),
    Column("mean", "mean", make_number_format(2)), Column("raw", where="file"),
    Column("range", "low to high", kind="range", axis=(0, 2), where="page"),
    Column("shape", "shape", kind="shape", axis=(0, 2), where="view"),
]  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"name": "a_b & c", "definition": EVIL, "share": 0.1234, "mean": 1.0, "raw": 7, "range": (0, 1, 2),
     "shape": [0.5, 0.0, 0.5]},
    {"name": EVIL, "share": None},
]  # fmt: skip
TABLE = Table("a table", COLUMNS, ROWS)


def test_a_table_is_rendered_as_html(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(f"<main>{to_html(TABLE)}</main>", encoding="utf-8")
    page = Page(tmp_path / "page.html")
    assert "b" not in {tag for tag, _ in page.tags}
    assert page.text.count(EVIL) == 2
    assert "a_b & c" in page.text
    assert "12.3% 1.00" in page.text
    assert "7" not in page.text
    labels = [str(svg["aria-label"]) for svg in page.of("svg")]
    assert labels == ["mean 1.00, p10 0, p90 2 on the axis 0 to 2", "share of each depth from 0 in %: 50, 0, 50"]
    assert page.text.count("–") == 4, "what is absent is shown as absent"


def test_a_table_is_rendered_as_text() -> None:
    head, rule, first, second = to_text(TABLE).splitlines()
    assert head.split() == ["name", "share", "mean", "shape"]
    assert set(rule) == {"-"}
    assert first.split() == ["a_b", "&", "c", "12.3%", "1.00", "|@", "@|"]
    assert second.split() == [EVIL, "-", "-", "-"]


@pytest.mark.parametrize(("value", "written"), keep_one_quick(4, [
    ("=1+1", "'=1+1"), ("+1+1", "'+1+1"), ("-1+1", "'-1+1"), ("@SUM(A1)", "'@SUM(A1)"), ("＝1+1", "'＝1+1"),
    ("\t=1", "'\t=1"), ("\r\n=1", "'\r\n=1"), ("-1-2", "'-1-2"), ("+1,SUM(A1)", "'+1,SUM(A1)"),
    ("a;=1", "a;=1"), ("nice ;-) film", "nice ;-) film"), ("a\n-b", "a\n-b"), ("a\t=1", "a\t=1"),
    ("-1,5", "-1,5"), ("+1.234,5", "+1.234,5"), ("-.5e-3", "-.5e-3"), ("-5%", "-5%"),
    ("-", "-"), ("=", "="), ("1-2", "1-2"), ("<= 5", "<= 5"), (-1.5, "-1.5"), (-2, "-2"), (None, ""),
]))  # fmt: skip
def test_no_text_of_a_csv_is_a_formula(value: object, written: str) -> None:
    assert next(csv.reader(io.StringIO(format_csv([[value]]), newline=""))) == [written]


def test_a_table_is_rendered_as_csv() -> None:
    rows = list(csv.reader(to_csv(TABLE).splitlines()))
    assert rows == [["name", "share", "mean", "raw"], ["a_b & c", "0.1234", "1.0", "7"], [EVIL, "", "", ""]]
    assert to_records(TABLE) == (rows[0], [["a_b & c", 0.1234, 1.0, 7], [EVIL, None, None, None]])


def test_a_table_is_rendered_as_latex() -> None:
    lines = to_latex(TABLE, "n = 3 tokens of held_out").splitlines()
    assert lines[:4] == [
        r"\begin{table}", r"\centering", rf"\caption{{{TABLE.name.capitalize()}. n = 3 tokens of held\_out.}}",
        r"\begin{tabular}{lrr}",
    ]  # fmt: skip
    assert r"a\_b \& c & 12.3\% & 1.00 \\" in lines
    assert lines[-2:] == [r"\end{tabular}", r"\end{table}"]
    escaped = r"\textless{}b\textgreater{}\&'" + '"' + r"\textless{}/b\textgreater{}"
    assert rf"{escaped} & -- & -- \\" in lines


def test_the_highest_share_is_the_darkest_despite_rounding():
    share = 0.1182835151005931  # 9 * share / share is above 9
    assert format_sparkline([share, 0.0, share / 2]) == format_sparkline([1.0, 0.0, 0.5])
