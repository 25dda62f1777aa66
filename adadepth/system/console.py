"""What a run says: through rich in a terminal, as plain lines without control characters in a log.

The words are the same in both; a terminal shows numbers and warnings in colour (not with NO_COLOR set), and a bar where
a log gets a line now and then. Only this module imports rich.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

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
def progress(what: str, total: float | None, *, of: str = "", shown: bool = True) -> Iterator[Advance]:
    """Tell how far something is and how long it will still take; yields what to call with every share that is done.

    Args:
        what: Is going on, for people.
        total: Work, in any unit in which equal amounts take about equal times. None: nobody knows, and how much is done
            is told instead.
        of: What is counted, for where nobody knows the total.
        shown: False in all processes but one.
    """
    if not shown:
        yield lambda amount: None
        return
    with _bar(what, total) if _in_terminal() else _lines(what, total, of) as advance:
        yield advance


@contextmanager
def _bar(what: str, total: float | None) -> Iterator[Advance]:
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
def _lines(what: str, total: float | None, of: str) -> Iterator[Advance]:
    begun = told = time.monotonic()
    done = 0.0

    def advance(amount: float) -> None:
        nonlocal done, told
        done, now = done + amount, time.monotonic()
        if now - told < SECONDS_BETWEEN_LINES or (total is not None and done >= total):
            return
        told = now
        if total is None:
            say(f"{what}: {done:,.0f} {of}, {minutes(now - begun)} so far")
            return
        left = (now - begun) * (total - done) / done
        say(f"{what}: {done / total:.0%}, {minutes(now - begun)} so far, about {minutes(left)} left")

    yield advance


def minutes(seconds: float) -> str:
    """A time for people, such as `1:05:09` or `5:09`."""
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


_READER_GONE = (errno.EPIPE, errno.EIO)  # of a pipe, of a terminal


@contextmanager
def patient_streams() -> Iterator[None]:
    """Within, nobody has to read standard output and standard error."""
    _open_closed_ones()
    usual = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_patient, usual)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            _end(stream)
        sys.stdout, sys.stderr = usual


def _open_closed_ones() -> None:
    """Open what was closed at the start (`>&-`) on nothing: the next file opened would take its number, and its words.

    Python sets such a stream to None.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _patient(stream: TextIO) -> TextIO:
    """A stream on the same file that no reader's end disturbs; one that is no file stays as it is."""
    try:
        file = _Patient(stream.fileno(), "w", closefd=False)
    except (OSError, AttributeError):  # a test's, a notebook's
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(file), stream.encoding, stream.errors, line_buffering=file.isatty(), write_through=True
    )


def _end(stream: TextIO) -> None:
    """Let a patient stream that a handler of a log still holds write no more: its file's number may be another's."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if isinstance(raw, _Patient):
        raw.is_over = True


class _Patient(io.FileIO):
    """A file descriptor that leads nowhere once nobody reads it, for whatever else writes to it as well."""

    is_over = False

    def write(self, data: Any, /) -> int:
        if self.is_over:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _READER_GONE:
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return memoryview(data).nbytes
