"""No stream ends a run: where a reader goes away (`| head`), a terminal closes, or streams were closed from the start.

What is written after that goes nowhere; the record and the log files of a run do not depend on its streams.
"""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

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
    """The same stream, on the same file, that no reader's end disturbs; one that is no file stays as it is."""
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
