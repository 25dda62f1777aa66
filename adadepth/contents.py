"""What a folder consists of: a record of its files, and whether they are still as it says.

Checkpoints, saved models and prepared data keep one, each in a file of its own.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Record = Mapping[str, Mapping[str, Any]]  # by path in the folder: `bytes`, and a digest by its name
_BYTES_AT_ONCE = 2**22


def describe(folder: Path, but: str | None = None) -> dict[str, dict[str, Any]]:
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
    """It tells any accident, in a third of the time of SHA-256; who wants to deceive could write the record anew."""
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
