"""What a run says: a logger whose handler writes to standard output, and bars of progress.

The words are the same in a terminal and in a log; a terminal shows numbers and warnings in colour (not with NO_COLOR
set).
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from rich.console import Console

Advance = Callable[[float], None]

# C0 and C1, what turns the direction of writing round, and halves of characters, which no terminal can be sent.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SECONDS_BETWEEN_BARS = 30.0  # in a log


def visible(text: str) -> str:
    """Text with control characters written out as Python does; tabs and line ends stay.

    Names of classes, files and metrics are somebody's data; in a terminal an escape sequence in them would move the
    cursor, change the title or hide lines.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def say(text: str) -> None:
    """Log lines for the user; see `visible`."""
    _logger().info(visible(text))


@cache
def _logger() -> logging.Logger:
    """Return a logger that stands beside `adadepth`, whose handlers Hydra sets anew for every job."""
    logger = logging.getLogger("adadepth-console")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_Handler())
    return logger


class _Handler(logging.Handler):
    """Writes messages above the bars: through rich in a terminal, as plain lines elsewhere."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message; where nobody reads it any more (`| head`), this and later ones go nowhere."""
        try:
            with tqdm.external_write_mode(file=sys.stdout):
                _write(record.getMessage())
        except OSError:
            _discard(sys.stdout.fileno())


def _write(text: str) -> None:
    if sys.stdout is None or not sys.stdout.isatty():
        print(text, flush=True)
        return
    for line in text.split("\n"):
        _console().print(line, style="yellow" if line.startswith("warning: ") else None)


@cache
def _console() -> Console:
    """Return the console of standard output, whichever that is when it is used."""
    from rich.console import Console

    return Console(markup=False, emoji=False, soft_wrap=True)


def leave_terminal() -> None:
    """Let what is written to a terminal go nowhere: it is closed, and every write to it would fail."""
    for number in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                _discard(number)


def _discard(number: int) -> None:
    """Open a file descriptor on nothing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


@contextmanager
def progress(what: str, total: float | None, *, of: str = "it", shown: bool = True) -> Iterator[Advance]:
    """Show how far something is and how long it will still take; yields what to call with every share that is done.

    Args:
        what: Name of the task, for people.
        total: Work, in any unit in which equal amounts take about equal times; None: not known.
        of: Unit of what is counted.
        shown: False in all processes but one.
    """
    seconds = 0.1 if sys.stderr is not None and sys.stderr.isatty() else _SECONDS_BETWEEN_BARS
    with tqdm(
        desc=what,
        total=total,
        unit=f" {of}",
        unit_scale=True,
        mininterval=seconds,
        delay=seconds,  # what is done at once shows no bar
        leave=False,
        disable=not shown,
    ) as bar:

        def advance(amount: float) -> None:
            bar.update(amount)

        yield advance


def minutes(seconds: float) -> str:
    """Return a time for people, such as `1:05:09` or `5:09`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
