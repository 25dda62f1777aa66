"""Lock of a run directory, which only one process may write to. The system releases it when the process ends."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from filelock import FileLock, Timeout

from adadepth.errors import CheckpointError
from adadepth.runtime.files import is_dead_process
from adadepth.runtime.json_files import read_json

LOCK = ".lock"
_WORKER_TIMEOUT_S = 10.0  # loader workers inherit their process's lock, and notice its death within five seconds


class _Owner(TypedDict):
    """Process and host that hold a lock, as written in the lock file."""

    pid: int | str
    host: int | str


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock a directory within the `with` block; the lock file names the process and the host.

    Raises:
        CheckpointError: If the lock file is a link or a folder, or if a live process holds the lock. A process on
            another host counts as alive, because it cannot be checked.
    """
    path = directory / LOCK
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise CheckpointError(f"{path}: must be a regular file; delete it")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=_WORKER_TIMEOUT_S if _is_dead(_read_owner(path)) else 0)
    except Timeout as error:
        raise CheckpointError(f"{directory}: in use{_describe(_read_owner(path))}") from error
    try:
        owner = _read_owner(path)
        if owner.get("host", socket.gethostname()) != socket.gethostname():
            raise CheckpointError(
                f"{directory}: in use{_describe(owner)}; if that run is no longer running, delete {path}"
            )
        path.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        lock.release()


def release_remote_lock(directory: Path) -> None:
    """Delete the lock of a process on another host that is known to be dead."""
    if _read_owner(directory / LOCK).get("host", socket.gethostname()) != socket.gethostname():
        (directory / LOCK).unlink(missing_ok=True)


def _read_owner(path: Path) -> dict[str, Any]:
    """Read the process and host from a lock file; return an empty mapping if it is damaged."""
    try:
        owner: dict[str, Any] = read_json(path, _Owner)
    except CheckpointError:
        return {}
    return owner


def _describe(owner: dict[str, Any]) -> str:
    return f" by process {owner['pid']} on {owner['host']}" if owner else " by another process"


def _is_dead(owner: dict[str, Any]) -> bool:
    if owner.get("host") != socket.gethostname():
        return False
    try:
        return is_dead_process(int(owner["pid"]))
    except ValueError:
        return True
