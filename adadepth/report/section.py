"""Tokens on the colour of their depth, and what a page says of one that is pointed at, tapped or focused."""

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
from adadepth.report.table import Table, as_html, number, percent


class Note(NamedTuple):
    """A line of what is said: a name, a share, which is drawn as a bar with its number, and a text."""

    name: str
    text: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Token:
    """A token of a text.

    Attributes:
        text: As a reader sees it.
        depth: Updates, a whole number.
        starts: Whether there is a space before it.
        after: What stands behind a bar: a label, a prediction; None: nothing.
        is_marked: Whether it is outlined.
        notes: What is said where one points at it.
    """

    text: str
    depth: int
    starts: bool
    after: str | None = None
    is_marked: bool = False
    notes: Sequence[Note] = ()


def steps(probabilities: Iterable[float | None], said: Iterable[str] = ()) -> list[Note]:
    """A note an iteration, counted from 1: its halting probability, and what is predicted after it."""
    return [
        Note(str(step), text or "", share)
        for step, (share, text) in enumerate(zip_longest(probabilities, said), start=1)
    ]


def notes_in_words(notes: Sequence[Note]) -> str:
    """Notes on one line, for who has no script."""
    return "; ".join(map(_in_words, notes))


def _in_words(note: Note) -> str:
    told = " ".join(filter(None, ["" if note.share is None else f"{note.share:.3f}", note.text]))
    return f"{note.name}: {told}" if told else note.name


def as_lists(notes: Sequence[Note]) -> list[list[Any]]:
    """Notes for the script of a page: of each what there is of name, text and share."""
    return [[part for part in note if part not in (None, "")] for note in notes]


@dataclass(frozen=True)
class Section:
    """What a page says about one thing.

    Attributes:
        title: The heading; a section without one stands above the first heading.
        anchor: Name of its place on the page.
        html: What stands below the heading.
        figures: The drawings that are also files of their own.
        tables: The tables that are also files of their own.
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


@dataclass(frozen=True)
class Placed:
    """A section of a run's page; every module of this package may have some, in a tuple `SECTIONS`.

    Attributes:
        order: Where it stands: those of smaller numbers are above it.
        build: From a run's files to the section, or to None where they have nothing to say.
        alone: A file: the page of a run that has it consists of this section, and of those that are on every page.
        subtitle: Of such a page.
        always: Whether it is on every page.
    """

    order: int
    build: SectionOf
    alone: str | None = None
    subtitle: str = ""
    always: bool = False


def fill(template: str, *packages: str, **content: Any) -> Markup:
    """Fill in a template of `packages` or of this one, `FILE` or `FILE:BLOCK` of a file with several; escape text."""
    name, _, part = template.partition(":")
    found = templates(*packages).get_template(f"{name}.html.j2")
    if not part:
        return Markup(found.render(**content))
    return Markup("".join(found.blocks[part](found.new_context(content))))


@cache
def templates(*packages: str) -> Environment:
    """The templates of other packages, by their names, and of this one; all escape text."""
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
        "charts": svg.charts,
        "table": as_html,
        "in_words": notes_in_words,
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
