"""Files that are whole or not there: atomic writes, what a folder holds, and room on the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from adadepth.errors import CheckpointError, UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# What safetensors, torch and NumPy say, which do not pass on the system's number.
_PLAIN = {"No space left on device": "free some more", "File too large": "lift the limit of its size (ulimit -f)"}
_SAID = (*_PLAIN, "iostream error", "PytorchStreamWriter failed writing", " requested and ")


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
    unsaid = next((said for said in _PLAIN if said in str(error)), " or ".join(_PLAIN))
    reason = (getattr(error, "strerror", None) or unsaid).lower()
    place = folder if name is None else Path(name).parent
    if place is None:
        return f"{reason}: {next(iter(str(error).splitlines()), '')}"
    more = " or ".join(cure for said, cure in _PLAIN.items() if said.lower() in reason) or "free some more"
    what = "" if name is None else f" for {Path(name).name}"
    return f"{place}: {reason}{what} ({free_space(place)}); {more}, a training goes on with resume=latest"


def free_space(folder: Path) -> str:
    """What is free on the disk of a folder, which may be gone again."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    return f"{shutil.disk_usage(place).free / 2**20:,.1f} MiB are free"


# A file that takes another's place when it is whole: `.NAME.WRITER.tmp`. Folders are shared between machines, whose
# numbers of processes say nothing of each other.
_HOST = re.sub(r"\W", "_", socket.gethostname())
_TEMPORARY = re.compile(r"\..+\.(?:(?P<host>\w+)-)?(?P<process>\d+)\.tmp")
_WRITTEN_INTO = ("figures", "tables", "predictions", "checkpoints")  # folders of a run


def write_atomic(path: Path, text: str) -> None:
    """Write a whole UTF-8 file or nothing: a kill or a full disk leaves the earlier version, and an error names it."""
    with open_atomic(path) as file:
        file.write(text)


@contextmanager
def open_atomic(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file to be written part by part, which is there when it is whole; see `write_atomic`."""
    try:
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.filename in (None, str(_temporary(path))):  # else it is of what was read meanwhile
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place at the end; what killed processes left there goes."""
    _remove_of_the_dead(path.parent)
    temporary = _temporary(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{_HOST}-{os.getpid()}.tmp")


def _remove_of_the_dead(folder: Path) -> None:
    for path in folder.glob(".*"):
        found = _TEMPORARY.fullmatch(path.name)
        if found is None:
            continue
        if found["host"] == _HOST and is_dead(int(found["process"])):
            path.unlink(missing_ok=True)


def is_dead(process: int) -> bool:
    """Whether this machine has no such process."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


def refuse_links(directory: Path) -> None:
    """Refuse a run's folder in which a link stands where something is to be written: it would be written elsewhere.

    Raises:
        CheckpointError: Naming the link.
    """
    folders = [directory, *(directory / name for name in _WRITTEN_INTO)]
    entries = (entry for folder in folders if folder.is_dir() for entry in folder.iterdir())
    for entry in sorted(entries):
        if entry.is_symlink():
            raise CheckpointError(f"{entry}: is a link, through which a run would write elsewhere; put the files there")


def remove_leftovers(directory: Path, others: str) -> None:
    """Remove the temporary files that a kill has left in a folder and those inside it.

    Args:
        directory: A folder that nobody else uses.
        others: But for the folder of this name in it, which others may be writing to.
    """
    for path in directory.rglob(".*"):
        is_ours = path.relative_to(directory).parts[0] != others
        if is_ours and path.is_file() and _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


Record = Mapping[str, Mapping[str, Any]]  # by path in the folder: `bytes`, and a digest by its name
_BYTES_AT_ONCE = 2**22


def describe_files(folder: Path, but: str | None = None) -> dict[str, dict[str, Any]]:
    """Size and CRC-32 of every file in a folder, by its path there.

    Args:
        folder: Read to the end.
        but: The name of the file that the record is kept in.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != but)
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "crc32": _crc32(path)} for path in paths
    }


def damage(folder: Path, record: Record) -> str | None:
    """Which file of a folder is missing or not as it was written, for a sentence that names the folder; None: all are.

    Raises:
        LookupError, TypeError, AttributeError: If the record is none.
    """
    for name, written in record.items():
        path = folder / name
        if not path.is_file():
            return f"its {name} is missing"
        if (size := path.stat().st_size) != written["bytes"]:
            return f"its {name} is damaged ({size:,} bytes of {written['bytes']:,})"
        kind = "crc32" if "crc32" in written else "sha256"
        if _DIGESTS[kind](path) != written[kind]:
            return f"its {name} is not as it was written"
    return None


def _crc32(path: Path) -> int:
    """The CRC-32 of a file: it tells any accident in a third of the time of SHA-256, though no deceiver."""
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(_BYTES_AT_ONCE):
            checksum = zlib.crc32(piece, checksum)
    return checksum


def _sha256(path: Path) -> str:
    """What the manifests of older checkpoints have."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_DIGESTS: dict[str, Callable[[Path], int | str]] = {"crc32": _crc32, "sha256": _sha256}
