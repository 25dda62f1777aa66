"""Writing of report pages and their downloads: figures as SVG, tables as CSV and LaTeX."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from adadepth.report import svg
from adadepth.report.run_files import REPORT
from adadepth.report.section import Section, fill
from adadepth.report.style import get_depth_color, get_text_color
from adadepth.report.table import to_csv, to_latex
from adadepth.runtime.files import write_atomic

FIGURES, TABLES = "figures", "tables"


class Link(NamedTuple):
    """File offered for download on a report page: its type, its address, and its name for saving."""

    kind: str
    href: str
    name: str


def list_downloads(section: Section) -> Iterator[tuple[str, list[Link]]]:
    """Yield the files that a page offers for download with each figure and table.

    Text formats (SVG, CSV, LaTeX) are embedded in the page, so they can be downloaded from a copy of the page alone.
    PDF and PNG files are in `figures/`, next to the page.
    """
    for figure in section.figures:
        name = sanitise_file_name(figure.name)
        drawing = f"data:image/svg+xml;base64,{b64encode(svg.document(figure).encode()).decode()}"
        beside = [Link(kind.upper(), f"{FIGURES}/{name}.{kind}", f"{name}.{kind}") for kind in ("pdf", "png")]
        yield figure.name, [Link("SVG", drawing, f"{name}.svg"), *beside]
    for table in section.tables:
        name = sanitise_file_name(table.name)
        rows = Link("CSV", _encode_text("text/csv", to_csv(table)), f"{name}.csv")
        latex = Link("LaTeX", _encode_text("application/x-tex", to_latex(table, section.of or "")), f"{name}.tex")
        yield table.name, [rows, latex]


def _encode_text(kind: str, content: str) -> str:
    return f"data:{kind};charset=utf-8,{quote(content)}"


def sanitise_file_name(name: str) -> str:
    """Replace characters that file names must not have."""
    return re.sub(r"[^\w.-]+", "_", name)


def write_page(
    directory: Path,
    sections: Sequence[Section],
    *,
    title: str,
    subtitle: str,
    sources: Sequence[str],
    owner: str = "this run",
    error: str | None = None,
    max_updates: int = 0,
) -> Path:
    """Write a report page report.html, its tables as CSV and LaTeX, and its figures as SVG.

    Args:
        directory: Folder of the page.
        sections: Sections in order.
        title: Heading of the page.
        subtitle: Subtitle of the page.
        sources: Names of the files that the page was made from.
        owner: Description of the owner of the files, such as `this run`.
        error: Error that ended the run.
        max_updates: Depth with the darkest shade.

    Returns:
        The path of the page.
    """
    content = {"sections": sections, "sources": sources, "owner": owner, "error": error, "downloads": list_downloads}
    page = fill("page", title=title, subtitle=subtitle, depth_styles=depth_styles(max_updates), **content)
    write_atomic(directory / REPORT, page)
    _write_tables(directory / TABLES, sections)
    for figure in (figure for section in sections for figure in section.figures):
        (directory / FIGURES).mkdir(exist_ok=True)
        write_atomic(directory / FIGURES / f"{sanitise_file_name(figure.name)}.svg", svg.document(figure))
    return directory / REPORT


def _write_tables(folder: Path, sections: Iterable[Section]) -> None:
    for table, sample in ((table, section.of or "") for section in sections for table in section.tables):
        stem = folder / sanitise_file_name(table.name)
        stem.parent.mkdir(exist_ok=True)
        write_atomic(stem.with_name(f"{stem.name}.csv"), to_csv(table))
        write_atomic(stem.with_name(f"{stem.name}.tex"), to_latex(table, sample))


def depth_styles(depth: int) -> list[tuple[int, str, str]]:
    """Return (depth, background colour, text colour) of each depth 0..L, for the style sheet of a page."""
    colors = [(value, get_depth_color(value, depth)) for value in range(depth + 1)]
    return [(value, color, get_text_color(color)) for value, color in colors]
