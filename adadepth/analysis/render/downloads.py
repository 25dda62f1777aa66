"""What a reader can take away from a page: figures as SVG, PDF and PNG, tables as CSV and LaTeX."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

from adadepth.analysis.render import svg
from adadepth.analysis.render.section import Section
from adadepth.analysis.render.table import as_csv, as_latex

FIGURES, TABLES = "figures", "tables"


class Link(NamedTuple):
    """A file to take away: what kind it is, where it is, and what it is called when it is kept."""

    kind: str
    href: str
    name: str


def downloads(section: Section) -> Iterator[tuple[str, list[Link]]]:
    """By figure or table the files of it.

    What is text is in the page itself, so that it can be taken from a page that was sent on alone; PDF and PNG lie
    beside the page, in `figures/`.
    """
    for figure in section.figures:
        name = file_name(figure.name)
        drawn = f"data:image/svg+xml;base64,{b64encode(svg.document(figure).encode()).decode()}"
        beside = [Link(kind.upper(), f"{FIGURES}/{name}.{kind}", f"{name}.{kind}") for kind in ("pdf", "png")]
        yield figure.name, [Link("SVG", drawn, f"{name}.svg"), *beside]
    for table in section.tables:
        name = file_name(table.name)
        rows = Link("CSV", _text("text/csv", as_csv(table)), f"{name}.csv")
        latex = Link("LaTeX", _text("application/x-tex", as_latex(table, section.of or "")), f"{name}.tex")
        yield table.name, [rows, latex]


def _text(kind: str, content: str) -> str:
    return f"data:{kind};charset=utf-8,{quote(content)}"


def file_name(name: str) -> str:
    """A name without what a file's must not have."""
    return re.sub(r"[^\w.-]+", "_", name)
