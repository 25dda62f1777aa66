"""Files that are whole or absent."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

# A file that takes another's place when it is whole: `.NAME.PID.tmp`, or `.PID.NAME` where the ending says the format.
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp|\.\d+\..+\.(png|pdf|gif)")


def write_atomic(path: Path, text: str) -> None:
    """Write a whole UTF-8 file or nothing: a kill or a full disk leaves the earlier version, and an error names it."""
    with open_atomic(path) as file:
        file.write(text)


@contextmanager
def open_atomic(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file to be written part by part, which is there when it is whole; see `write_atomic`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # a failing write names none, a failing `open` the temporary one
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(directory: Path, others: str) -> None:
    """Remove the temporary files that a kill has left in a folder and those inside it.

    Args:
        directory: That nobody else uses.
        others: But for the folder of this name in it, which others may be writing to.
    """
    for path in directory.rglob(".*"):
        is_ours = path.relative_to(directory).parts[0] != others
        if is_ours and path.is_file() and _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)
