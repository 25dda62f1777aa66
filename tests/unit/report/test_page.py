"""Common parts of all pages: sample sizes of sections, remarks on cut axes, and files to download."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from adadepth.report import svg
from adadepth.report.figure import Axis, Bars, Figure, Lines, Panel, Stacks, build_depth_axis
from adadepth.report.page_writer import list_downloads
from adadepth.report.pages import build_report, write_report
from adadepth.report.run_files import read_run
from adadepth.report.section import Section, fill
from tests.marks_support import keep_one_quick
from tests.pages_support import read_report
from tests.unit.report.synthetic import make_run
from tests.unit.report.synthetic_architectures import make_search_run
from tests.unit.report.synthetic_exits import add_exit_files, add_halting_files
from tests.unit.report.synthetic_layers import make_layer_run

MAKERS: dict[str, Callable[[Path], object]] = {
    "token": lambda path: make_run(path, max_updates=4, evaluations=2),
    "sequence": lambda path: add_halting_files(add_exit_files(path)),
    "task": make_layer_run,
    "architecture": make_search_run,
}  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module", params=keep_one_quick(4, MAKERS))
def sections(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Section]:
    directory = tmp_path_factory.mktemp(request.param)
    MAKERS[request.param](directory)
    return list(build_report(read_run(directory)).sections)


def iterate_figures(sections: list[Section]) -> Iterator[Figure]:
    yield from (figure for section in sections for figure in section.figures)


def test_measured_sections_have_their_sample_size(sections: list[Section]) -> None:
    measured = [section for section in sections if section.figures or section.tables]
    assert len(measured) >= 3
    for section in measured:
        assert re.search(r"n = [\d,]+ \w+", section.of), section.title
    assert all(figure.of in svg.document(figure) for figure in iterate_figures(sections))


def test_bars_begin_at_zero(sections: list[Section]) -> None:
    for panel in (panel for figure in iterate_figures(sections) for panel in figure.panels):
        if isinstance(panel.mark, Bars | Stacks):
            assert panel.y is not None
            assert panel.y.span[0] == 0


def test_every_figure_is_a_file_that_can_be_read(sections: list[Section]) -> None:
    for figure in iterate_figures(sections):
        root = ElementTree.fromstring(svg.document(figure))
        assert root.tag == f"{SVG}svg"
        texts = [element.text for element in root.iter(f"{SVG}text")]
        assert {panel.title for panel in figure.panels} <= set(texts)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        assert 400 < width < 3000
        assert 200 < height < 6000


def test_downloads_equal_the_shown_figures_and_tables(sections: list[Section]) -> None:
    for section in sections:
        downloads = [{link.kind: link for link in links} for _, links in list_downloads(section)]
        of_figures, of_tables = downloads[: len(section.figures)], downloads[len(section.figures) :]
        for figure, links in zip(section.figures, of_figures, strict=True):
            assert b64decode(links["SVG"].href.partition(",")[2]).decode() == svg.document(figure)
            assert links["PDF"].href == f"figures/{links['PDF'].name}"
        for table, links in zip(section.tables, of_tables, strict=True):
            rows = list(csv.reader(unquote(links["CSV"].href.partition(",")[2]).splitlines()))
            assert len(rows) == len(table.rows) + 1
            latex = unquote(links["LaTeX"].href)
            assert r"\toprule" in latex
            assert section.of
            assert section.of.replace("_", r"\_") in latex.partition("tabular")[0], "the caption says of how many"


def test_downloads_lie_on_the_disk(tmp_path: Path) -> None:
    page = write_report(read_report(make_run(tmp_path, max_updates=4, evaluations=2))).read_text(encoding="utf-8")
    for name in re.findall(r'download="([^"]+\.svg)"', page):
        assert (tmp_path / "figures" / name).is_file()
    for name in re.findall(r'download="([^"]+\.(?:csv|tex))"', page):
        assert (tmp_path / "tables" / name).is_file()


@pytest.mark.parametrize(
    ("axis", "is_cut"),
    [(Axis("loss", (0, 7)), False), (Axis("loss", (-1, 7)), False), (Axis("loss", (6, 7)), True),
     (build_depth_axis("depth", 6), False), (build_depth_axis("depth", 6, 0), False),
     (Axis("perplexity", (1, 9), start=1), False),
     (Axis("class", (2.6, -0.6), (0, 1), ("a", "b")), False)],
)  # fmt: skip
def test_an_axis_that_does_not_begin_at_zero_has_a_remark(axis: Axis, is_cut: bool) -> None:
    assert axis.is_cut is is_cut
    panel = Panel("loss", Lines([("", [(0, 6.5), (1, 6.6)])]), Axis("step", (0, 1)), axis)
    assert ("starts at 6" in svg.render_chart(panel)) is is_cut
    assert axis.label.startswith(axis.title)


def test_the_remark_of_a_cut_axis_is_defined() -> None:
    page = fill("halting_terms", unit="token", has_exits=False)
    assert "<dt>Starts at</dt>" in page
    assert "starts at" in Axis("loss", (6, 7)).label


@pytest.mark.parametrize(
    "title",
    ["loss", "mean depth (updates) with its 95 % interval", f"compute needed {'without predictions ' * 4}, a share"],
)
def test_titles_of_axes_stay_in_the_drawing(title: str) -> None:
    panel = Panel("depth", Lines([("", [(0, 6.5), (1, 6.6)])]), Axis(title, (6, 7)), Axis(title[:32], (6, 7)))
    root = ElementTree.fromstring(str(svg.render_chart(panel)))
    for text in root.iter("text"):
        half = 12 * 0.55 * len(text.text or "") / 2
        if "transform" in text.attrib:
            assert 2 * half <= svg.HEIGHT
        elif text.attrib["text-anchor"] == "middle":
            assert half <= float(text.attrib["x"]) <= svg.WIDTH - half + 0.05  # tenths of a pixel
            assert float(text.attrib["y"]) <= svg.HEIGHT
    assert "starts at 6" in str(svg.render_chart(panel))
