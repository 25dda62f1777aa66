"""A cache of folders addressed by content: a key names everything its folder was computed from."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from adadepth.data.seal import discard_damaged, find_damage, seal
from adadepth.disk import free_space, is_full
from adadepth.errors import DataError

logger = logging.getLogger(__name__)

CACHE_FORMAT = 1  # raise it when what is written, or how text becomes tokens, changes
_LONGEST = 200  # characters of a path that are worth repeating
_UNUSABLE = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP
}  # fmt: skip


def digest(*parts: object) -> str:
    """Return a 128-bit hexadecimal digest of JSON-able values."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def cache_root(cache_dir: str | None) -> Path:
    """Return the cache folder: the given one, ``$ADADEPTH_CACHE``, or ``~/.cache/adadepth``."""
    return Path(cache_dir or os.environ.get("ADADEPTH_CACHE") or Path.home() / ".cache" / "adadepth").expanduser()


def cached_folder(root: Path, name: str, build: Callable[[Path], None]) -> Path:
    """Return ``root/name``, calling ``build(empty folder)`` first when it does not exist or is damaged.

    The folder appears whole or not at all (built under another name, then renamed). Of several processes that want
    it, one builds and the others wait.

    Raises:
        DataError: the folder cannot be written, e.g. the disk is full.
    """
    target = root / name
    with usable_cache(root, "free some space"):
        if target.exists() and find_damage(target) is None:
            return target
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{name}.lock"):
            discard_damaged(target)
            if not target.exists():
                _build(root, name, build)
    return target


def _build(root: Path, name: str, build: Callable[[Path], None]) -> None:
    for abandoned in root.glob(f"{name}.*.partial"):  # of a killed process: the lock is ours
        shutil.rmtree(abandoned, ignore_errors=True)
    logger.info("preparing %s in %s", name, root)
    temporary = root / f"{name}.{uuid.uuid4().hex}.partial"
    try:
        temporary.mkdir()
        build(temporary)
        seal(temporary)
        temporary.rename(root / name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def usable_cache(root: Path, when_full: str) -> Iterator[None]:
    """Turn a cache folder that is full, closed to the user or no folder into one line.

    Raises:
        DataError: ``when_full`` where the disk is, else what the system says.
    """
    try:
        yield
    except OSError as error:
        # What was read to be prepared is not the cache's, so its troubles are told by the file that they have.
        place = str(error.filename or root)  # inside the folder, or above it where that cannot be made
        is_ours = error.errno in _UNUSABLE and (place.startswith(str(root)) or str(root).startswith(place))
        if not is_full(error) and not is_ours:
            raise
        reason, advice = error.strerror, "make it a folder that can be written"
        if is_full(error):
            reason, advice = f"No space left on device ({free_space(root)})", when_full
        raise DataError(
            f"dataset.cache_dir={str(root)[:_LONGEST]}: {reason}; {advice}, or choose another folder with "
            "dataset.cache_dir=..."
        ) from error
