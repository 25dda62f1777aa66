"""Source files of data, with a check that they do not change while they are read."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adadepth.data.cache import CheckedSource
from adadepth.errors import DataError


class SourceFile:
    """Source file of data, which can detect whether it has changed since this object was created.

    Args:
        key: Setting that names the file, for messages.
        path: Path of the file.

    Raises:
        DataError: If the file does not exist, or if it cannot be read.
    """

    def __init__(self, key: str, path: Path) -> None:
        self.key = key
        self.path = path
        self._state = self._read_state()
        self._digest: str | None = None

    def digest(self) -> str:
        """Return the extension of the file and a digest of its bytes.

        The bytes are read once. A file that was moved counts as the same source.
        """
        if self._digest is None:
            self._digest = self._compute_digest()
        return self._digest

    def check(self) -> None:
        """Raise an error if the file has changed since this object was created.

        Size, time and real path are compared, and also the bytes if they were digested before.

        Raises:
            DataError: If the file has changed, is missing, or is no longer a file.
        """
        if self._read_state() != self._state or self._digest not in (None, self._compute_digest()):
            raise DataError(
                f"{self.key}={self.path}: the file changed while it was read; nothing was stored, so start again "
                "when no process writes to it"
            )

    def _read_state(self) -> tuple[str, int, int]:
        """Return the real path of the file, its modification time, and its size."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise self._unreadable(error) from error
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{self.key}={self.path}: must be a file, but no longer is one")
        return os.path.realpath(self.path), status.st_mtime_ns, status.st_size

    def _compute_digest(self) -> str:
        try:
            with self.path.open("rb") as stream:
                return f"{self.path.suffix} {hashlib.file_digest(stream, 'blake2b').hexdigest()}"
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> DataError:
        return DataError(f"{self.key}={self.path}: cannot be read ({error.strerror})")


def open_sources(key: str, paths: Iterable[Path]) -> list[SourceFile]:
    """Wrap the files that the setting ``key`` names as sources that detect changes."""
    return [SourceFile(key, path) for path in paths]


def digest_sources(sources: Iterable[CheckedSource]) -> list[Any]:
    """Return the digest of each source: the file name extension and the content hash of a file."""
    return [source.digest() for source in sources]
