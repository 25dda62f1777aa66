"""Turns at a model: one question at a time, and none that keeps the others waiting without end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

from adadepth.errors import DataError

MAX_SECONDS = 120.0  # that a model computes for a question, or for a token of a text that it writes
GRACE = 5.0  # seconds for a turn to end after its time is over
Result = TypeVar("Result")


class Deadline:
    """The time that a question has at a model."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.end = 0.0
        self.renew()

    def renew(self) -> None:
        """Begin its time anew, as after every token of a text that is written."""
        self.end = perf_counter() + self._seconds

    def check(self, *_: Any) -> None:
        """Stop a question whose time is over; called before every module of the model.

        Raises:
            DataError: It is over.
        """
        if perf_counter() > self.end:
            raise DataError(f"the question takes more than {self._seconds:g} seconds; ask a shorter one")


class ModelLock:
    """Whose turn it is; what a checkpoint has one of.

    Args:
        seconds: Time of a question.
    """

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._deadline: Deadline | None = None

    @contextmanager
    def hold(self, model: Any) -> Iterator[Deadline]:
        """Wait for a turn at a model; within, its modules stop a question whose time is over.

        Raises:
            DataError: The question before is overdue, because compiled code that nobody can stop still runs for it.
        """
        deadline = self._deadline
        remaining = self.seconds if deadline is None else deadline.end - perf_counter()
        if not self._lock.acquire(timeout=max(remaining, 0.0) + GRACE):
            raise DataError("the model is still busy with a question before, which takes too long; ask again later")
        handles: list[Any] = []
        try:
            self._deadline = deadline = Deadline(self.seconds)
            handles += [module.register_forward_pre_hook(deadline.check) for module in model.modules()]
            yield deadline
        finally:
            for handle in handles:
                handle.remove()
            self._deadline = None
            self._lock.release()


def call_with_timeout(seconds: float, function: Callable[[], Result]) -> Result:
    """Return what a function returns, or raise what it raises, but do not wait for one that takes too long.

    It is called in a thread, which goes on where compiled code that knows no end has it.

    Raises:
        DataError: The time is over.
    """
    results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def call() -> None:
        try:
            results.put((function(), None))
        except BaseException as error:  # whatever it is, someone waits for it
            results.put((None, error))

    threading.Thread(target=call, daemon=True).start()
    try:
        result, error = results.get(timeout=seconds + 2 * GRACE)
    except Empty:
        raise DataError(f"the question takes more than {seconds:g} seconds; ask a shorter one") from None
    if error is not None:
        raise error
    return result
