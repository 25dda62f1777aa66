"""Sections of a report: data structures, template rendering, and tokens annotated with their depth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from adadepth.report import svg
from adadepth.report.figure import Figure
from adadepth.report.run_files import RunFiles
from adadepth.report.table import Table, number, percent, to_html


class Note(NamedTuple):
    """A line of an annotation: a name, a text, and a share that is drawn as a bar with its number."""

    name: str
    text: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Token:
    """A token of a text.

    Attributes:
        text: Text as a reader sees it.
        depth: Updates, a whole number.
        starts: Whether there is a space before it.
        after: Label or prediction behind a bar; None: nothing.
        is_marked: Whether it is outlined.
        notes: Annotations shown on hover, tap or focus.
    """

    text: str
    depth: int
    starts: bool
    after: str | None = None
    is_marked: bool = False
    notes: Sequence[Note] = ()


def steps(probabilities: Iterable[float | None], predictions: Iterable[str] = ()) -> list[Note]:
    """Return a note per iteration, counted from 1: its halting probability, and the prediction after it."""
    return [
        Note(str(step), text or "", share)
        for step, (share, text) in enumerate(zip_longest(probabilities, predictions), start=1)
    ]


def join_notes(notes: Sequence[Note]) -> str:
    """Join notes on one line, for pages without a script."""
    words = []
    for name, text, share in notes:
        content = " ".join(filter(None, ["" if share is None else f"{share:.3f}", text]))
        words.append(f"{name}: {content}" if content else name)
    return "; ".join(words)


def as_lists(notes: Sequence[Note]) -> list[list[Any]]:
    """Return notes as lists for the script of a page, without empty parts."""
    return [[part for part in note if part not in (None, "")] for note in notes]


@dataclass(frozen=True)
class Section:
    """One section of a page.

    Attributes:
        title: The heading; a section without one stands above the first heading.
        anchor: Anchor on the page.
        html: Content below the heading.
        figures: The drawings that are also files of their own.
        tables: The tables that are also files of their own.
        of: Sample: the number of examples, networks or runs. Empty: the units of the evaluation. None: nothing is
            measured.
    """

    title: str
    anchor: str
    html: Markup
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    of: str | None = ""


SectionOf = Callable[[RunFiles], Section | None]


@dataclass(frozen=True)
class SectionEntry:
    """A section of a run's page and its order; modules of this package list theirs in a tuple `SECTIONS`.

    Attributes:
        order: Position on the page; smaller numbers come first.
        build: Function from a run's files to the section; None where they hold nothing for it.
        alone: File name; a run with that file gets a page of this section and those on every page.
        subtitle: Subtitle of such a page.
        always: Whether it is on every page.
    """

    order: int
    build: SectionOf
    alone: str | None = None
    subtitle: str = ""
    always: bool = False


def fill(template: str, *packages: str, **content: Any) -> Markup:
    """Render a template, `FILE` or `FILE:BLOCK`, of `packages` or of this package; text is escaped."""
    name, _, part = template.partition(":")
    loaded = load_templates(*packages).get_template(f"{name}.html.j2")
    if not part:
        return Markup(loaded.render(**content))
    return Markup("".join(loaded.blocks[part](loaded.new_context(content))))


@cache
def load_templates(*packages: str) -> Environment:
    """Return the templates of other packages, by their names, and of this one; all escape text."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "adadepth.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "percent": percent,
        "charts": svg.render_charts,
        "table": to_html,
        "in_words": join_notes,
        "as_lists": as_lists,
    }
    return environment


def explain_damage(title: str, anchor: str, what: str, files: RunFiles, name: str) -> Section | None:
    """Return a section that says that an optional file is damaged; None where there is no such file."""
    return Section(title, anchor, absent(what, files, name)) if name in files.missing else None


def absent(what: str, files: RunFiles, name: str, otherwise: str = "") -> Markup:
    """Return a sentence on what is not available, and why: its file is missing, damaged or does not hold it."""
    reason = files.missing.get(name, otherwise)
    return Markup('<p class="absent">{} not available{}.</p>\n').format(what, f": {reason}" if reason else "")
