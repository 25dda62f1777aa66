"""Ctrl-C and SIGTERM wait while Hydra and OmegaConf compose a configuration.

What a signal raises there goes astray: a `finally:` of theirs needs what the interrupted statement would have set and
fails itself, so that its error takes the place of the interruption; where Hydra looks for the mode it drops any error.
"""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM)
_usual: dict[int, Any] = {}  # what they do when they are not held back; empty: they are not
_waiting: list[int] = []


@contextmanager
def held_back() -> Iterator[None]:
    """Within, a signal waits for `let_through` or the end; a second one does at once what it usually does."""
    _waiting.clear()
    _usual.update((number, signal.getsignal(number)) for number in _ENDING)
    _set(dict.fromkeys(_ENDING, _wait))
    try:
        yield
    finally:
        _set(_usual)
        _usual.clear()
    _deliver()


@contextmanager
def let_through() -> Iterator[None]:
    """Within `held_back`, signals do what they usually do, also one that waits; elsewhere nothing changes."""
    if not _usual:  # in a process that a launcher of Hydra's started
        yield
        return
    _set(_usual)
    try:
        _deliver()
        yield
    finally:
        _set(dict.fromkeys(_ENDING, _wait))


def _set(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _wait(number: int, frame: FrameType | None) -> None:
    _waiting.append(number)
    if len(_waiting) > 1:  # it still waits, too: what it raises here may go astray
        _set(_usual)
        signal.raise_signal(number)


def _deliver() -> None:
    """Send the last signal that waits again."""
    if _waiting:
        number = _waiting[-1]
        _waiting.clear()
        signal.raise_signal(number)
