"""Cache folders on disk, each with a manifest that lists the size and checksum of every file."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from adadepth.errors import DataError
from adadepth.runtime.files import describe_files, find_damaged_file, format_free_space, is_full, write_atomic

logger = logging.getLogger(__name__)

SEAL = "files.json"


def write_manifest(folder: Path) -> None:
    """Flush the files of a folder to disk, then write their manifest.

    Without the flush, a power failure after the renaming of the folder could leave empty files in it.
    """
    for file in folder.iterdir():
        _flush(file)
    write_atomic(folder / SEAL, json.dumps(describe_files(folder, but=SEAL)))
    _flush(folder)


def find_damage(folder: Path) -> str | None:
    """Return what is wrong with a cache folder, or None if all files have the sizes and checksums of the manifest.

    Every byte is read, because prepared data are used for months, on disks that fill up and are copied.
    """
    try:
        record = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        return find_damaged_file(folder, record)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return f"its {SEAL} is missing"
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"its {SEAL} is unreadable"


def discard_damaged(folder: Path) -> None:
    """Delete a damaged cache folder and log a warning. The caller must hold the lock of the folder."""
    if os.path.lexists(folder) and (problem := find_damage(folder)):
        logger.warning("%s: damaged (%s); rebuilding it", folder, problem)
        remove_path(folder)


def remove_path(path: Path) -> None:
    """Delete a file, a link or a folder with its content. Do nothing if the path does not exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


CACHE_FORMAT = 1  # raise it when what is written, or how text becomes tokens, changes
_LONGEST = 200  # characters of a path in a message
_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}
_UNUSABLE = {errno.EACCES, errno.EPERM, errno.EROFS, *_NO_FOLDER}


def digest(*parts: object) -> str:
    """Return a 128-bit hexadecimal hash of JSON-serialisable values, for the names of cache folders."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def get_cache_root(cache_dir: str | None) -> Path:
    """Return the cache folder: ``cache_dir`` if given, else ``$ADADEPTH_CACHE``, else ``~/.cache/adadepth``."""
    return Path(cache_dir or os.environ.get("ADADEPTH_CACHE") or Path.home() / ".cache" / "adadepth").expanduser()


class CheckedSource(Protocol):
    """Source of cached data, such as a file, that can detect whether it has changed."""

    def digest(self) -> Any:
        """Return JSON values that identify the content of the source."""

    def check(self) -> None:
        """Raise a one-line `DataError` if the source has changed since its digest was computed."""


def check_sources(sources: Iterable[CheckedSource]) -> None:
    """Raise a `DataError` for the first source that has changed."""
    for source in sources:
        source.check()


@contextmanager
def require_unchanged(sources: Iterable[CheckedSource]) -> Iterator[None]:
    """Raise an error when the `with` block ends if data sources that were read inside it have changed on disk.

    Raises:
        DataError: If a source changed. This error replaces any other error of the block.
    """
    try:
        yield
    except Exception:
        check_sources(sources)
        raise
    check_sources(sources)


def ensure_folder(
    root: Path,
    name: str,
    build: Callable[[Path], None],
    sources: Sequence[CheckedSource] = (),
) -> Path:
    """Return the cache folder ``root/name``, and build it first if it does not exist or is damaged.

    The folder is built under another name and then renamed, so that it is never incomplete. If several processes call
    this function, one of them builds the folder and the others wait.

    Args:
        root: Cache folder.
        name: Name of the folder, which must identify the content of the sources.
        build: Function that fills an empty folder.
        sources: Sources that ``build`` reads. If one of them changed since its digest was computed, the folder is
            discarded.

    Raises:
        DataError: If the folder cannot be written, e.g. because the disk is full, or if a source changed while it was
            read.
    """
    target = root / name
    with wrap_cache_errors(root, "free more space"):
        if target.exists() and find_damage(target) is None:
            return target
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{name}.lock"):
            discard_damaged(target)
            if not target.exists():
                _build(root, name, build, sources)
    return target


def _build(root: Path, name: str, build: Callable[[Path], None], sources: Sequence[CheckedSource]) -> None:
    for abandoned in root.glob(f"{name}.*.partial"):  # of a killed process: the lock is ours
        shutil.rmtree(abandoned, ignore_errors=True)
    logger.info("preparing %s in %s", name, root)
    temporary = root / f"{name}.{uuid.uuid4().hex}.partial"
    try:
        temporary.mkdir()
        with require_unchanged(sources):
            build(temporary)
        write_manifest(temporary)
        temporary.rename(root / name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def wrap_cache_errors(root: Path, when_full: str) -> Iterator[None]:
    """Convert errors about a cache folder that is full, inaccessible or not a folder into a one-line error.

    Raises:
        DataError: If the disk is full, with the advice ``when_full``, or if the system denies access to the folder.
    """
    try:
        yield
    except OSError as error:
        # Errors of the sources are not the cache's: they name their own file.
        path = str(error.filename or root)  # inside the folder, or above it where that cannot be made
        is_ours = error.errno in _UNUSABLE and (path.startswith(str(root)) or str(root).startswith(path))
        if not is_full(error) and not is_ours:
            raise
        reason, advice = error.strerror, "make the folder writable"
        if is_full(error):
            reason, advice = f"No space left on device ({format_free_space(root)})", when_full
        raise DataError(
            f"dataset.cache_dir={str(root)[:_LONGEST]}: {reason}; {advice}, or choose another folder with "
            "dataset.cache_dir=..."
        ) from error
