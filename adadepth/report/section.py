"""Sections of a report page: data structures, HTML templates, and tokens annotated with their depth."""

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
    """Line of a token's annotation on a report page: a name, a text, and a share drawn as a bar."""

    name: str
    text: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Token:
    """Token of a text on a report page, with its depth and annotations.

    Attributes:
        text: Text as displayed.
        depth: Number of updates, a whole number.
        starts: Whether a space precedes the token.
        after: Label or prediction after a bar, or None for nothing.
        is_marked: Whether the token is outlined.
        notes: Annotations shown on hover, tap or focus.
    """

    text: str
    depth: int
    starts: bool
    after: str | None = None
    is_marked: bool = False
    notes: Sequence[Note] = ()


def steps(probabilities: Iterable[float | None], predictions: Iterable[str] = ()) -> list[Note]:
    """Return an annotation for each iteration of a token, with its halting probability and prediction."""
    return [
        Note(str(step), text or "", share)
        for step, (share, text) in enumerate(zip_longest(probabilities, predictions), start=1)
    ]


def join_notes(notes: Sequence[Note]) -> str:
    """Join annotations on one line, for pages read without scripts."""
    words = []
    for name, text, share in notes:
        content = " ".join(filter(None, ["" if share is None else f"{share:.3f}", text]))
        words.append(f"{name}: {content}" if content else name)
    return "; ".join(words)


def as_lists(notes: Sequence[Note]) -> list[list[Any] | float]:
    """Convert annotations for the JavaScript of a page: to lists without empty parts, or to a bare number.

    A bare number is the share of a step, whose name is its position, counted from 1.
    """
    return [
        note.share
        if note.share is not None and not note.text and note.name == str(position)
        else [part for part in note if part not in (None, "")]
        for position, note in enumerate(notes, start=1)
    ]


@dataclass(frozen=True)
class Section:
    """Section of a report page.

    Attributes:
        title: Heading. A section without a heading is placed above the first heading.
        anchor: Anchor on the page.
        html: Content below the heading.
        figures: Figures that are also written as separate files.
        tables: Tables that are also written as separate files.
        of: Sample size: the number of examples, networks or runs. An empty string stands for the units of the
            evaluation, and None for a section without measurements.
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
    """Registration of a report section, with its position on the page. Modules list theirs in `SECTIONS`.

    Attributes:
        order: Position on the page; smaller numbers come first.
        build: Function from the files of a run to the section, or to None if they have no data for it.
        alone: File name. A run with that file has a page that consists of this section and the sections with `always`.
        subtitle: Subtitle of such a page.
        always: Whether the section is on every page.
    """

    order: int
    build: SectionOf
    alone: str | None = None
    subtitle: str = ""
    always: bool = False


def fill(template: str, *packages: str, **content: Any) -> Markup:
    """Render a template, `FILE` or `FILE:BLOCK`, of this package or of `packages`, to HTML. Text is escaped."""
    name, _, part = template.partition(":")
    loaded = load_templates(*packages).get_template(f"{name}.html.j2")
    if not part:
        return Markup(loaded.render(**content))
    return Markup("".join(loaded.blocks[part](loaded.new_context(content))))


@cache
def load_templates(*packages: str) -> Environment:
    """Load the page templates of this package and, by name, of other packages. All templates escape text."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "adadepth.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # a long page has 1,500 annotated tokens
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
    """Return a report section that names a damaged optional file, or None if the file does not exist."""
    return Section(title, anchor, absent(what, files, name)) if name in files.missing else None


def absent(what: str, files: RunFiles, name: str, otherwise: str = "") -> Markup:
    """Return a sentence on why a value is not available: its file is missing, is damaged, or lacks the value."""
    reason = files.missing.get(name, otherwise)
    return Markup('<p class="absent">{} not available{}.</p>\n').format(what, f": {reason}" if reason else "")
