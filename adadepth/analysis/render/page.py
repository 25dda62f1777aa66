"""A page: sections below each other, with navigation, colours for light and dark, and what can be taken away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from adadepth.analysis.render import svg
from adadepth.analysis.render.colors import depth_color, text_on
from adadepth.analysis.render.downloads import FIGURES, TABLES, downloads, file_name
from adadepth.analysis.render.section import Section, fill
from adadepth.analysis.render.table import as_csv, as_latex
from adadepth.atomic import write_atomic

REPORT = "report.html"


def write_page(
    directory: Path,
    sections: Sequence[Section],
    *,
    title: str,
    subtitle: str,
    sources: Sequence[str],
    whose: str = "this run",
    error: str | None = None,
    max_depth: int = 0,
) -> Path:
    """Write report.html, its tables as CSV and LaTeX into `tables/`, its figures as SVG into `figures/`.

    Args:
        directory: Where.
        sections: In order.
        title: Heading.
        subtitle: What it is about.
        sources: The files that it is made of.
        whose: What these are files of.
        error: What a run ended with.
        max_depth: Up to which depth tokens are shaded.

    Returns:
        The path of the page.
    """
    page = fill(
        "page", title=title, subtitle=subtitle, sections=sections, sources=sources, whose=whose, error=error,
        downloads=downloads, depth_styles=depth_styles(max_depth),
    )  # fmt: skip
    write_atomic(directory / REPORT, page)
    _write_tables(directory / TABLES, sections)
    _write_vectors(directory / FIGURES, sections)
    return directory / REPORT


def _write_tables(folder: Path, sections: Iterable[Section]) -> None:
    for table, of in ((table, section.of or "") for section in sections for table in section.tables):
        stem = folder / file_name(table.name)
        stem.parent.mkdir(exist_ok=True)
        write_atomic(stem.with_name(f"{stem.name}.csv"), as_csv(table))
        write_atomic(stem.with_name(f"{stem.name}.tex"), as_latex(table, of))


def _write_vectors(folder: Path, sections: Iterable[Section]) -> None:
    for figure in (figure for section in sections for figure in section.figures):
        folder.mkdir(exist_ok=True)
        write_atomic(folder / f"{file_name(figure.name)}.svg", svg.document(figure))


def depth_styles(depth: int) -> list[tuple[int, str, str]]:
    """(depth, background, text colour) for depths 0..L."""
    colors = [(value, depth_color(value, depth)) for value in range(depth + 1)]
    return [(value, color, text_on(color)) for value, color in colors]
