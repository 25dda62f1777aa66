"""The signals that end a run, and that they end it at once while Hydra and OmegaConf compose a configuration.

What a signal raises there goes astray: a `finally:` of theirs needs what the interrupted statement would have set and
fails itself, so that its error takes the place of the interruption; where Hydra looks for the mode it drops any error.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from adadepth.system.console import leave_terminal

HANGUP = getattr(signal, "SIGHUP", None)  # a terminal that closes; Windows has no such signal
# Ctrl-C, what `kill` and schedulers send, and a terminal that closes.
_ENDING = (signal.SIGINT, signal.SIGTERM, *([] if HANGUP is None else [HANGUP]))
# What schedulers send some time before a job has to end: Slurm's --signal, submitit.
_WARNINGS = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
_raising: dict[int, Any] = {}  # the usual handlers, while `leaving_at_once` has put others in their place


def ending() -> list[signal.Signals]:
    """The signals that end this run: what is ignored by now stays so, as `nohup` and `&` of a script ask for."""
    return [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]


def stopping() -> list[signal.Signals]:
    """The signals that a training stops for, with a checkpoint: those that end a run, and a scheduler's warnings."""
    return [*ending(), *_WARNINGS]


def is_repeated(number: int) -> bool:
    """Whether a signal may come twice without anybody's impatience: of shell and system, of a scheduler."""
    return number == HANGUP or number in _WARNINGS


def pass_on(number: int) -> None:
    """Let a scheduler's own code, which has put a handler before ours, know of its warning: it requeues the job."""
    if number in _WARNINGS and callable(signal.getsignal(number)):
        signal.raise_signal(number)


@contextmanager
def ending_as_exits() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP end the program as an exit does, so that all is closed; SIGINT does anyway."""
    previous: dict[int, Any] = {number: signal.signal(number, _exit) for number in ending() if number != signal.SIGINT}
    try:
        yield
    finally:
        _set(previous)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    if number == HANGUP:  # a shell and the system both send it: the second one must not disturb the ending
        signal.signal(number, signal.SIG_IGN)
        leave_terminal()
    raise SystemExit(128 + number)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Within, a signal ends the process on the spot, but for `let_through`; there is nothing to close yet."""
    _raising.update({number: signal.signal(number, _leave) for number in ending()})
    try:
        yield
    finally:
        _set(_raising)
        _raising.clear()


@contextmanager
def let_through() -> Iterator[None]:
    """Within `leaving_at_once`, signals do what they usually do; elsewhere nothing changes."""
    _set(_raising)
    try:
        yield
    finally:
        _set(dict.fromkeys(_raising, _leave))


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    if number == signal.SIGINT:
        print("error: interrupted", file=sys.stderr, flush=True)
    os._exit(128 + number)


def _set(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
