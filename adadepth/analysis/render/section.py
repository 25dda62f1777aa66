"""A section of the report: a heading, and what stands below it, made from the files of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from adadepth.analysis.files import RunFiles
from adadepth.analysis.render import svg
from adadepth.analysis.render.figure import Figure
from adadepth.analysis.render.formats import number, percent
from adadepth.analysis.render.table import Table, as_html
from adadepth.analysis.render.tokens import as_lists, in_words


@dataclass(frozen=True)
class Section:
    """What a page says about one thing.

    Attributes:
        title: The heading; a section without one stands above the first heading.
        anchor: Name of its place on the page.
        html: What stands below the heading.
        figures: Those that are also files of their own.
        tables: Likewise.
        of: What all of it is of, where that is not the evaluation's units: the number of examples, networks or runs.
            None: nothing is measured.
    """

    title: str
    anchor: str
    html: Markup
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    of: str | None = ""


SectionOf = Callable[[RunFiles], Section | None]


def fill(template: str, **content: Any) -> Markup:
    """A template of this package filled in; text is escaped."""
    return Markup(_environment().get_template(f"{template}.html.j2").render(**content))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("adadepth.analysis.render"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "number": number,
        "percent": percent,
        "charts": svg.charts,
        "table": as_html,
        "in_words": in_words,
        "as_lists": as_lists,
    }
    return environment


def told_if_damaged(title: str, anchor: str, what: str, files: RunFiles, name: str) -> Section | None:
    """What stands instead of a section whose file only some runs have: nothing, or that the file is damaged."""
    return Section(title, anchor, absent(what, files, name)) if name in files.missing else None


def absent(what: str, files: RunFiles, name: str, otherwise: str = "") -> Markup:
    """A sentence about what is not there, and why: its file is missing or damaged, or does not hold it."""
    reason = files.missing.get(name, otherwise)
    return Markup('<p class="absent">{} not available{}.</p>\n').format(what, f": {reason}" if reason else "")
