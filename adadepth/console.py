"""What a run says: through rich in a terminal, as plain lines without control characters in a log.

The words are the same in both; a terminal shows numbers and warnings in colour (not with NO_COLOR set), and a bar where
a log gets a line now and then. Only this module imports rich.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from rich.console import Console

# Parts of words in several scripts, and of emoji; soft hyphens.
_JOINERS = "\u200c\u200d\xad"
# C0 and C1, what turns the direction of writing round, and halves of characters, which no terminal can be sent.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
SECONDS_BETWEEN_LINES = 30.0
Advance = Callable[[float], None]

_STYLES = {
    "warning": "yellow",
    "label": "bold",
    "missing": "dim",
    "number": "cyan",
}
_PATTERNS = (
    r"(?<![\w.:/-])(?P<number>[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?%?)(?![\w/])",
    r"(?m)^(?P<label>(train|eval)[^:\n]*|report|writing to|submission|checkpoint|trace)(?=[: ])",
    r"(?m)^(?P<missing>not available: .*)$",
    r"(?m)^(?P<warning>warning: .*)$",
)


def visible(text: str) -> str:
    """Text with control characters written out as Python does; tabs and line ends stay.

    Names of classes, files and metrics are somebody's data; in a terminal an escape sequence in them would move the
    cursor, change the title or hide lines.
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def say(text: str) -> None:
    """Print lines, above a bar where there is one; see `visible`."""
    text = visible(text)
    with tqdm.external_write_mode(file=sys.stdout):
        if _in_terminal():
            _console().print(text)
        else:
            print(text, flush=True)


@contextmanager
def progress(what: str, total: float, *, shown: bool = True) -> Iterator[Advance]:
    """Tell how far something is and how long it will still take; yields what to call with every share that is done.

    Args:
        what: Is going on, for people.
        total: Work, in any unit in which equal amounts take about equal times.
        shown: False in all processes but one.
    """
    if not shown:
        yield lambda amount: None
        return
    with _bar(what, total) if _in_terminal() else _lines(what, total) as advance:
        yield advance


@contextmanager
def _bar(what: str, total: float) -> Iterator[Advance]:
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    left = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), *left)
    # Drawn when something is done, by nobody else: a thread that draws would be timed with what is measured.
    with Progress(*columns, console=_console(), transient=True, auto_refresh=False) as shown:
        task = shown.add_task(what, total=total)
        shown.refresh()

        def advance(amount: float) -> None:
            shown.advance(task, amount)
            shown.refresh()

        yield advance


@contextmanager
def _lines(what: str, total: float) -> Iterator[Advance]:
    begun = told = time.monotonic()
    done = 0.0

    def advance(amount: float) -> None:
        nonlocal done, told
        done, now = done + amount, time.monotonic()
        if now - told < SECONDS_BETWEEN_LINES or done >= total:
            return
        told = now
        left = (now - begun) * (total - done) / done
        say(f"{what}: {done / total:.0%}, {minutes(now - begun)} so far, about {minutes(left)} left")

    yield advance


def minutes(seconds: float) -> str:
    """`1:05:09` or `5:09`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _in_terminal() -> bool:
    return sys.stdout.isatty()


@cache
def _console() -> Console:
    """Of standard output, whichever that is when it is used."""
    from rich.console import Console
    from rich.highlighter import RegexHighlighter
    from rich.theme import Theme

    class Words(RegexHighlighter):
        base_style = "adadepth."
        highlights = list(_PATTERNS)

    theme = Theme({f"adadepth.{name}": style for name, style in _STYLES.items()})
    return Console(theme=theme, highlighter=Words(), markup=False, emoji=False, soft_wrap=True)
