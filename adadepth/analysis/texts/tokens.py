"""The tokens of a text as a reader sees them, from a row of texts.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Shown(NamedTuple):
    """A token: its text, whether there is a space before it, its depth as a whole number, and what is known of it."""

    text: str
    starts: bool
    depth: int
    about: Mapping[str, Any]


def shown_tokens(row: Mapping[str, Any]) -> list[Shown]:
    """The tokens of a text as the user wrote them; special ones as the vocabulary has them."""
    found, end = [], None
    for token in row.get("tokens") or []:
        if token["span"] is None:
            found.append(Shown(token["piece"], True, round(token["updates"]), token))
            end = None
            continue
        start, stop = token["span"]
        text = row["text"][token["part"]][start:stop]
        found.append(Shown(text.strip() or token["piece"], start != end or text != text.lstrip(),
                           round(token["updates"]), token))  # fmt: skip
        end = stop
    return found


def said(about: Mapping[str, Any]) -> str:
    """What is predicted of a text, a token or a step: a class with its probability, or a value."""
    if about.get("value") is not None:
        return f"{about['value']:.3f}"
    if about.get("label") is None:
        return ""
    return about["label"] if about.get("score") is None else f"{about['label']} {about['score']:.2f}"


def board(cells: str) -> list[str]:
    """The cells of a puzzle as rows of a square, or in one row where they make none."""
    size = math.isqrt(len(cells))
    return [cells[start : start + size] for start in range(0, len(cells), size)] if size**2 == len(cells) else [cells]


def changed(cells: str, before: str) -> int:
    """How many cells of an answer are not those of the one before, or of the puzzle."""
    return sum(cell != other for cell, other in zip(cells, before, strict=True))


def progress(row: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any], int]]:
    """The steps of a puzzle up to its exit: number, what was said after it, and how many cells it changed."""
    steps = (row.get("steps") or [])[: round(row["updates"])]
    answers = [row["text"][0], *(step["label"] for step in steps)]
    return [
        (number, step, changed(step["label"], before))
        for number, (step, before) in enumerate(zip(steps, answers, strict=False), start=1)
    ]
