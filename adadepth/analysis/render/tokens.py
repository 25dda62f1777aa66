"""Tokens on the colour of their depth, and what a page says of one that is pointed at, tapped or focused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple


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


def in_words(notes: Sequence[Note]) -> str:
    """Notes on one line, for who has no script."""
    return "; ".join(map(_in_words, notes))


def _in_words(note: Note) -> str:
    told = " ".join(filter(None, ["" if note.share is None else f"{note.share:.3f}", note.text]))
    return f"{note.name}: {told}" if told else note.name


def as_lists(notes: Sequence[Note]) -> list[list[Any]]:
    """Notes for the script of a page: of each what there is of name, text and share."""
    return [[part for part in note if part not in (None, "")] for note in notes]
