"""Exclusive access to a served model: one request at a time, each with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

from adadepth.errors import DataError

MAX_SECONDS = 120.0  # time limit of a query, or of one generated token
GRACE = 5.0  # seconds for a query to end after its time limit
Result = TypeVar("Result")


class Deadline:
    """Time limit of a request to a served model."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.end = 0.0
        self.renew()

    def renew(self) -> None:
        """Start the time limit again, for example after every generated token."""
        self.end = perf_counter() + self._seconds

    def check(self, *_: Any) -> None:
        """Raise an error if the time limit of the request has passed.

        Raises:
            DataError: If the time limit has passed.
        """
        if perf_counter() > self.end:
            raise DataError(f"the request took more than {self._seconds:g} seconds; use a shorter input")


class ModelLock:
    """Lock of a served model, which one request at a time can hold.

    Args:
        seconds: Time limit of a query.
    """

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._deadline: Deadline | None = None

    @contextmanager
    def hold(self, model: Any) -> Iterator[Deadline]:
        """Wait for the lock and hold it within the `with` block, in which every module checks the time limit.

        Raises:
            DataError: If the previous query has not ended in time, because it still runs compiled code.
        """
        deadline = self._deadline
        remaining = self.seconds if deadline is None else deadline.end - perf_counter()
        if not self._lock.acquire(timeout=max(remaining, 0.0) + GRACE):
            raise DataError("the model is still busy with a previous request; try again later")
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
    """Call a function in a thread, and return its result or raise an error once a time limit passes.

    The function runs in a thread, which continues after the time limit if compiled code does not return.

    Raises:
        DataError: If the time limit has passed.
    """
    results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def call() -> None:
        try:
            results.put((function(), None))
        except BaseException as error:  # the caller waits for any error
            results.put((None, error))

    threading.Thread(target=call, daemon=True).start()
    try:
        result, error = results.get(timeout=seconds + 2 * GRACE)
    except Empty:
        raise DataError(f"the request took more than {seconds:g} seconds; use a shorter input") from None
    if error is not None:
        raise error
    return result
