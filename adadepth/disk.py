"""A disk that is full: whoever was writing, it is told in one line that names the folder."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adadepth.errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT}
# What safetensors, torch and NumPy say, which do not pass on the system's number.
_SAID = ("No space left on device", "iostream error", "PytorchStreamWriter failed writing", " requested and ")


class DiskFullError(UserError):
    """There is no room for a file."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say that the disk is full wherever that ends the block.

    Args:
        folder: What is written into, where the error names no file.

    Raises:
        DiskFullError: Naming folder, file and what is free. What was found full first is told, since whatever else a
            failing run writes fails, too.
    """
    try:
        yield
    except Exception as error:
        if (line := full_disk(error, folder)) is None:
            raise
        raise DiskFullError(line) from error


def full_disk(error: BaseException, folder: Path | None = None) -> str | None:
    """The line for a full disk or quota, if one is the cause of an error."""
    first: BaseException | None = None
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, DiskFullError):
            return str(current)
        if is_full(current):
            first = current
        current = current.__cause__ or current.__context__
    return None if first is None else _line(first, folder)


def is_full(error: BaseException) -> bool:
    """Whether an error, by itself, says that a disk or a quota is full."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return any(said in str(error) for said in _SAID)


def _line(error: BaseException, folder: Path | None) -> str:
    name = getattr(error, "filename", None)
    reason = (getattr(error, "strerror", None) or "no space left on device").lower()
    place = folder if name is None else Path(name).parent
    if place is None:
        return f"{reason}: {next(iter(str(error).splitlines()), '')}"
    what = "" if name is None else f" for {Path(name).name}"
    return f"{place}: {reason}{what} ({free_space(place)}); free some more, a training goes on with resume="


def free_space(folder: Path) -> str:
    """What is free on the disk of a folder, which may be gone again."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    return f"{shutil.disk_usage(place).free / 2**20:,.1f} MiB are free"
