"""Console output: messages for the user on standard output, and progress bars.

A terminal and a log file get the same text. A terminal shows numbers and warnings in colour, unless NO_COLOR is set. A
quiet run prints results and warnings only.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from rich.console import Console

Advance = Callable[[float], None]

# C0 and C1, marks that change the direction of writing, and surrogates, which no terminal can be sent.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LOG_INTERVAL_S = 30.0  # in a log
_WIDTH = 100  # columns of a line of prose
_WARNING = "warning: "
RESULT = (logging.INFO + logging.WARNING) // 2  # level of the messages that a quiet run prints, too


def visible(text: str) -> str:
    """Escape control characters in a text as Python does, except for tabs and line ends.

    Names of classes, files and metrics come from outside. An escape sequence in them could move the cursor of a
    terminal, change its title or hide lines.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def say(text: str, level: int = logging.INFO, *, wraps: bool = False) -> None:
    """Print lines for the user via the logger, with control characters escaped.

    Args:
        text: Lines.
        level: Level of the message: `INFO`, `RESULT` or `WARNING`. A quiet run prints the last two, and those lines of
            other messages that begin with `warning: `.
        wraps: Whether lines of prose above 100 columns continue on an indented line. Tables stay whole, and so do words
            such as paths. Commands, which are pasted into a shell, must not wrap.
    """
    if not _logger().isEnabledFor(level):
        text, level = "\n".join(line for line in text.splitlines() if line.startswith(_WARNING)), logging.WARNING
        if not text:
            return
    if wraps:
        text = "\n".join(map(_wrap, text.split("\n")))
    _logger().log(level, visible(text))


def _wrap(line: str) -> str:
    """Wrap a line of prose; a line with two spaces in a row is one of a table or of a drawing."""
    if len(line) <= _WIDTH or "  " in line:
        return line
    return textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


@contextmanager
def limit_output(is_limited: bool) -> Iterator[None]:
    """Print results and warnings only within the `with` block, if `is_limited` is true.

    The logger `adadepth`, below which are those of modules, then logs warnings only.
    """
    levels = {_logger(): RESULT, logging.getLogger("adadepth"): logging.WARNING}
    before = {logger: logger.level for logger in levels}
    for logger, level in (levels if is_limited else before).items():
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


def is_quiet() -> bool:
    """Return whether only results and warnings are printed."""
    return not _logger().isEnabledFor(logging.INFO)


@cache
def _logger() -> logging.Logger:
    """Return the logger that prints messages for the user.

    It is not below the logger `adadepth`, because Hydra replaces the handlers of that logger for every job.
    """
    logger = logging.getLogger("adadepth-console")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_Handler())
    return logger


class _Handler(logging.Handler):
    """Log handler that prints above progress bars with rich in a terminal, and plain lines elsewhere."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log record on the console.

        If the reader of a pipe has exited (`| head`), discard this message and all later ones.
        """
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
        _console().print(line, style="yellow" if line.startswith(_WARNING) else None)


@cache
def _console() -> Console:
    """Return the rich console, which looks up the current standard output at every use."""
    from rich.console import Console

    return Console(markup=False, emoji=False, soft_wrap=True)


def discard_terminal_output() -> None:
    """Send further output to the null device after the terminal has closed, because writes to it would fail."""
    for number in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                _discard(number)


def _discard(number: int) -> None:
    """Redirect a file descriptor to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


@contextmanager
def progress(what: str, total: float | None, *, of: str = "it", shown: bool = True) -> Iterator[Advance]:
    """Show a progress bar with the remaining time, and yield a function that advances it.

    A quiet run shows bars in a terminal only, where they vanish.

    Args:
        what: Name of the task, shown to the user.
        total: Total amount of work, in units that take about the same time each, or None if unknown.
        of: Name of the unit of work, shown to the user.
        shown: Whether this process shows the bar.
    """
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    seconds = 0.1 if is_terminal else _LOG_INTERVAL_S
    with tqdm(
        desc=what,
        total=total,
        unit=f" {of}",
        unit_scale=True,
        mininterval=seconds,
        delay=seconds,  # what is done at once shows no bar
        leave=False,
        disable=not shown or (is_quiet() and not is_terminal),
    ) as bar:

        def advance(amount: float) -> None:
            bar.update(amount)

        yield advance


def minutes(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds, such as `1:05:09` or `5:09`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
