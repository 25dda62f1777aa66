"""Folders that know what they hold: a record of every file, written down when they were made."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from adadepth.atomic import write_atomic
from adadepth.contents import damage, describe

logger = logging.getLogger(__name__)

SEAL = "files.json"


def seal(folder: Path) -> None:
    """Wait until the files of a folder have reached the disk, then write down what they are.

    A power cut after the folder was renamed must not leave it with empty files.
    """
    for file in folder.iterdir():
        _flush(file)
    write_atomic(folder / SEAL, json.dumps(describe(folder, but=SEAL)))
    _flush(folder)


def find_damage(folder: Path) -> str | None:
    """Say what is wrong with a sealed folder; None: every file is as it was written.

    All of it is read: what is prepared once is used for months, on disks that are copied and full.
    """
    try:
        record = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        return damage(folder, {name: _entry(written) for name, written in record.items()})
    except FileNotFoundError:
        return f"its {SEAL} is missing"
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"its {SEAL} is unreadable"


def discard_damaged(folder: Path) -> None:
    """Delete a folder that is not as it was written, and say so; whoever calls this holds its lock."""
    if folder.exists() and (problem := find_damage(folder)):
        logger.warning("%s: damaged (%s), it is made anew", folder, problem)
        shutil.rmtree(folder)


def _entry(written: Any) -> dict[str, Any]:
    """What is said of a file; folders of older versions say it as a pair."""
    return written if isinstance(written, dict) else dict(zip(("bytes", "crc32"), written, strict=True))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
