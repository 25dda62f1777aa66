"""The tokens of a text as a reader sees them, from a row of texts.json."""

from __future__ import annotations

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
    return "" if about.get("label") is None else f"{about['label']} {about['score']:.2f}"
