"""Files that are whole or absent, in folders that hold what is written into them."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from adadepth.errors import CheckpointError

# A file that takes another's place when it is whole: `.NAME.WRITER.tmp`, or `.WRITER.NAME` where the ending says the
# format. Folders are shared between machines, whose numbers of processes say nothing of each other.
_HOST = re.sub(r"\W", "_", socket.gethostname())
_WRITER = r"(?:(?P<{0}_host>\w+)-)?(?P<{0}_process>\d+)"
_TEMPORARY = re.compile(rf"\..+\.{_WRITER.format('by')}\.tmp|\.{_WRITER.format('of')}\..+\.(png|pdf|gif)")
_WRITTEN_INTO = ("figures", "tables", "predictions", "checkpoints")  # folders of a run


def write_atomic(path: Path, text: str) -> None:
    """Write a whole UTF-8 file or nothing: a kill or a full disk leaves the earlier version, and an error names it."""
    with open_atomic(path) as file:
        file.write(text)


@contextmanager
def open_atomic(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file to be written part by part, which is there when it is whole; see `write_atomic`."""
    name = f".{path.name}.{_writer()}.tmp"
    try:
        with (
            replacing(path, name) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.filename in (None, str(path.with_name(name))):  # else it is of what was read meanwhile
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path, name: str | None = None) -> Iterator[Path]:
    """A file beside `path` that takes its place at the end; what killed processes left there goes.

    Args:
        path: The file.
        name: Of the one beside it; None: one of the same ending.
    """
    _remove_of_the_dead(path.parent)
    temporary = path.with_name(name or f".{_writer()}.{path.name}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_of_the_dead(folder: Path) -> None:
    for path in folder.glob(".*"):
        found = _TEMPORARY.fullmatch(path.name)
        if found is None:
            continue
        host, process = found["by_host"] or found["of_host"], found["by_process"] or found["of_process"]
        if host == _HOST and is_dead(int(process)):
            path.unlink(missing_ok=True)


def _writer() -> str:
    return f"{_HOST}-{os.getpid()}"


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
        directory: That nobody else uses.
        others: But for the folder of this name in it, which others may be writing to.
    """
    for path in directory.rglob(".*"):
        is_ours = path.relative_to(directory).parts[0] != others
        if is_ours and path.is_file() and _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)
