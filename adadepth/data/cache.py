"""A cache of folders addressed by content: a key names everything its folder was computed from."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from adadepth.errors import DataError

logger = logging.getLogger(__name__)

CACHE_FORMAT = 1  # raise it when what is written, or how text becomes tokens, changes
FULL = {errno.ENOSPC, errno.EDQUOT}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def digest(*parts: object) -> str:
    """Return a 128-bit hexadecimal digest of JSON-able values."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def cache_root(cache_dir: str | None) -> Path:
    """Return the cache folder: the given one, ``$ADADEPTH_CACHE``, or ``~/.cache/adadepth``."""
    return Path(cache_dir or os.environ.get("ADADEPTH_CACHE") or Path.home() / ".cache" / "adadepth").expanduser()


def cached_folder(root: Path, name: str, build: Callable[[Path], None]) -> Path:
    """Return ``root/name``, calling ``build(empty folder)`` first when it does not exist.

    The folder appears whole or not at all (built under another name, then renamed). Of several processes that want
    it, one builds and the others wait.

    Raises:
        DataError: the folder cannot be written, e.g. the disk is full.
    """
    target = root / name
    if target.exists():
        return target
    temporary = root / f"{name}.{uuid.uuid4().hex}.partial"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{name}.lock"):
            if not target.exists():
                for abandoned in root.glob(f"{name}.*.partial"):  # of a killed process: the lock is ours
                    shutil.rmtree(abandoned, ignore_errors=True)
                logger.info("preparing %s in %s", name, root)
                temporary.mkdir()
                build(temporary)
                temporary.rename(target)
    except OSError as error:
        if error.errno not in FULL | FORBIDDEN:
            raise
        raise DataError(
            f"dataset.cache_dir={root}: cannot write the prepared data ({error.strerror}); free some space or "
            "choose another folder with dataset.cache_dir=..."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target
