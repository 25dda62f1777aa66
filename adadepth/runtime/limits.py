"""Limits of time and memory for code of strangers, such as the chat template of a downloaded tokenizer."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

_SIZE = Path("/proc/self/statm")  # of this process; its first number counts the pages of its address space


@contextmanager
def limit_seconds(seconds: float) -> Iterator[None]:
    """Raise an error in the `with` block when its time is over.

    Only the main thread of a process can interrupt itself; in other threads, the time is not limited.

    Args:
        seconds: Maximum duration in seconds.

    Raises:
        TimeoutError: If the block takes longer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> NoReturn:
        raise TimeoutError(f"it takes more than {seconds:g} s")

    begun, handler = time.monotonic(), signal.signal(signal.SIGALRM, interrupt)
    earlier, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, should the block catch the error
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if earlier:
            signal.setitimer(signal.ITIMER_REAL, max(earlier - (time.monotonic() - begun), 1e-3), interval)


@contextmanager
def limit_memory(size: int) -> Iterator[None]:
    """Raise an error in the `with` block when this process allocates much more memory than before.

    Without the file system of Linux, the memory is not limited.

    Args:
        size: Number of bytes that the block may allocate.

    Raises:
        MemoryError: If the block allocates more.
    """
    if not _SIZE.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = int(_SIZE.read_text().split()[0]) * resource.getpagesize() + size
    limits = [limit, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
