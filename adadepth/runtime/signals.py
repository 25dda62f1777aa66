"""Signal handling: stop signals during a run, and immediate exit during start-up.

The exit must be immediate because composition loses the exception of a signal handler. A `finally:` of OmegaConf reads
a variable that the interrupted statement would have set, and so raises another error. Hydra also drops any error while
it looks up its mode.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from adadepth.runtime.console import discard_terminal_output

HANGUP = getattr(signal, "SIGHUP", None)  # a terminal that closes; absent on Windows
# Ctrl-C, the signal of `kill` and schedulers, and a terminal that closes.
_TERMINATION = (signal.SIGINT, signal.SIGTERM, *([] if HANGUP is None else [HANGUP]))
# Warnings of schedulers before the end of a job: Slurm's --signal, submitit.
_WARNINGS = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
_replaced_handlers: dict[int, Any] = {}  # handlers that `exit_at_once_on_signals` has replaced


def list_termination_signals() -> list[signal.Signals]:
    """Return the signals that terminate this run, without those that `nohup` or a script disables."""
    return [number for number in _TERMINATION if signal.getsignal(number) is not signal.SIG_IGN]


def list_stop_signals() -> list[signal.Signals]:
    """Return the signals on which training writes a checkpoint and stops, including a scheduler's warnings."""
    return [*list_termination_signals(), *_WARNINGS]


def may_repeat(number: int) -> bool:
    """Return whether a scheduler or the system may send this signal twice.

    A repeated signal is then not a request by the user to stop at once.
    """
    return number == HANGUP or number in _WARNINGS


def forward_signal(number: int) -> None:
    """Send a scheduler's warning signal again, to the handler that was installed before ours and requeues the job."""
    if number in _WARNINGS and callable(signal.getsignal(number)):
        signal.raise_signal(number)


@contextmanager
def convert_signals_to_exits() -> Iterator[None]:
    """Convert SIGTERM and SIGHUP to SystemExit within the `with` block, so that files and trackers are closed."""
    previous: dict[int, Any] = {
        number: signal.signal(number, _raise_exit) for number in list_termination_signals() if number != signal.SIGINT
    }
    try:
        yield
    finally:
        _set_handlers(previous)


def _raise_exit(number: int, frame: FrameType | None) -> NoReturn:
    if number == HANGUP:  # shell and system both send it: the second one must not interrupt the exit
        signal.signal(number, signal.SIG_IGN)
        discard_terminal_output()
    raise SystemExit(128 + number)


@contextmanager
def exit_at_once_on_signals() -> Iterator[None]:
    """Exit immediately on a signal within the `with` block, before any file is open.

    Blocks of `restore_signal_handlers` are excepted.
    """
    _replaced_handlers.update({number: signal.signal(number, _exit_at_once) for number in list_termination_signals()})
    try:
        yield
    finally:
        _set_handlers(_replaced_handlers)
        _replaced_handlers.clear()


@contextmanager
def restore_signal_handlers() -> Iterator[None]:
    """Restore the normal signal handlers for a block inside `exit_at_once_on_signals`."""
    _set_handlers(_replaced_handlers)
    try:
        yield
    finally:
        _set_handlers(dict.fromkeys(_replaced_handlers, _exit_at_once))


def _exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    if number == signal.SIGINT:
        print("error: interrupted", file=sys.stderr, flush=True)
    os._exit(128 + number)


def _set_handlers(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
