"""Atomic writing of files, checksums of folders, and errors of a full disk."""

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

_FULL_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Messages of safetensors, torch and NumPy, which drop the error number of the system.
_REMEDIES = {
    "No space left on device": "free more space",
    "File too large": "raise the limit of file sizes (ulimit -f)",
}
_MESSAGES = (*_REMEDIES, "iostream error", "PytorchStreamWriter failed writing", " requested and ")


class DiskFullError(UserError):
    """A file cannot be written because the disk is full."""


@contextmanager
def convert_full_disk_errors(folder: Path) -> Iterator[None]:
    """Convert the error of a full disk within the `with` block to a `DiskFullError`.

    Args:
        folder: Folder to name in the message if the error names no file.

    Raises:
        DiskFullError: If the disk is full. The message names the folder, file and free space of the first failure in
            the chain of causes, because later writes of a failing run fail, too.
    """
    try:
        yield
    except Exception as error:
        if (line := format_full_disk_error(error, folder)) is None:
            raise
        raise DiskFullError(line) from error


def format_full_disk_error(error: BaseException, folder: Path | None = None) -> str | None:
    """Format an error that a full disk or quota caused as one line; return None if neither is its cause."""
    first: BaseException | None = None
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, DiskFullError):
            return str(current)
        if is_full(current):
            first = current
        current = current.__cause__ or current.__context__
    return None if first is None else _format_line(first, folder)


def is_full(error: BaseException) -> bool:
    """Return whether this error itself reports a full disk or quota."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL_DISK_ERRORS
    return any(message in str(error) for message in _MESSAGES)


def _format_line(error: BaseException, folder: Path | None) -> str:
    name = getattr(error, "filename", None)
    message = next((message for message in _REMEDIES if message in str(error)), " or ".join(_REMEDIES))
    reason = (getattr(error, "strerror", None) or message).lower()
    folder = folder if name is None else Path(name).parent
    if folder is None:
        return f"{reason}: {next(iter(str(error).splitlines()), '')}"
    remedy = " or ".join(remedy for message, remedy in _REMEDIES.items() if message.lower() in reason)
    what = "" if name is None else f" for {Path(name).name}"
    advice = f"{remedy or 'free more space'}; resume=latest resumes a training run"
    return f"{folder}: {reason}{what} ({format_free_space(folder)}); {advice}"


def format_free_space(folder: Path) -> str:
    """Format the free disk space at a folder, or at its nearest existing parent."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    return f"{shutil.disk_usage(existing).free / 2**20:,.1f} MiB are free"


# A file that replaces another one when it is whole: `.NAME.HOST-PROCESS.tmp`. Machines share folders, and process
# numbers of one machine say nothing about another.
_HOST = re.sub(r"\W", "_", socket.gethostname())
_TEMPORARY = re.compile(r"\..+\.(?:(?P<host>\w+)-)?(?P<process>\d+)\.tmp")
_WRITTEN_INTO = ("figures", "tables", "predictions", "checkpoints", "model")  # folders in a run directory


def write_atomic(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically: if writing fails, the earlier version remains."""
    with open_atomic(path) as file:
        file.write(text)


@contextmanager
def open_atomic(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file for writing that replaces `path` only when the `with` block ends without error.

    Errors name `path`, not the temporary file.
    """
    try:
        with replace_atomically(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.filename in (None, str(_name_temporary(path))):  # any other name is that of an input
            error.filename = str(path)
        raise


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces `path` when the `with` block ends.

    Temporary files that killed processes have left are removed.
    """
    _remove_stale(path.parent)
    temporary = _name_temporary(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _name_temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{_HOST}-{os.getpid()}.tmp")


def _remove_stale(folder: Path) -> None:
    for path in folder.glob(".*"):
        match = _TEMPORARY.fullmatch(path.name)
        if match is not None and match["host"] == _HOST and is_dead_process(int(match["process"])):
            path.unlink(missing_ok=True)


def is_dead_process(process: int) -> bool:
    """Return whether this machine has no process with this id any more."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False


def refuse_links(directory: Path) -> None:
    """Raise an error for a run directory with symbolic links, through which a run would change files elsewhere.

    Raises:
        CheckpointError: If there is a link, which the message names.
    """
    folders = [directory, *(directory / name for name in _WRITTEN_INTO)]
    entries = (entry for folder in folders if folder.is_dir() for entry in folder.iterdir())
    for entry in sorted(entries):
        if entry.is_symlink():
            raise CheckpointError(
                f"{entry}: is a link, through which a run would write elsewhere; replace it by the files"
            )


def remove_temporary_files(directory: Path, excluded: str) -> None:
    """Delete the temporary files that a killed process left in a directory tree.

    Args:
        directory: Directory that no other process is using.
        excluded: Name of a folder inside the directory to which other processes may be writing.
    """
    for path in directory.rglob(".*"):
        is_ours = path.relative_to(directory).parts[0] != excluded
        if is_ours and path.is_file() and _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


Record = Mapping[str, Mapping[str, Any]]  # path in the folder -> `bytes`, and a digest by its name
_CHUNK_BYTES = 2**22


def describe_files(folder: Path, but: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the size and CRC-32 of every file in a folder, by relative path.

    Args:
        folder: Folder of the files, which are read completely.
        but: File name to skip, such as that of the record.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != but)
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "crc32": _crc32(path)} for path in paths
    }


def find_damaged_file(folder: Path, record: Record) -> str | None:
    """Return which file of a folder is missing or does not match its recorded checksum, or None.

    Raises:
        LookupError, TypeError, AttributeError: If the record is malformed.
    """
    for name, written in record.items():
        path = folder / name
        if not path.is_file():
            return f"its {name} is missing"
        if (size := path.stat().st_size) != written["bytes"]:
            return f"its {name} is damaged ({size:,} bytes of {written['bytes']:,})"
        kind = "crc32" if "crc32" in written else "sha256"
        if _DIGESTS[kind](path) != written[kind]:
            return f"its {name} has changed since it was written"
    return None


def _crc32(path: Path) -> int:
    """Return the CRC-32 of a file, which detects accidental damage and takes a third of the time of SHA-256."""
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(piece, checksum)
    return checksum


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file, which the manifests of older checkpoints use."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_DIGESTS: dict[str, Callable[[Path], int | str]] = {"crc32": _crc32, "sha256": _sha256}
