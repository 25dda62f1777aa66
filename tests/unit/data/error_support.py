"""Cases of input that cannot be read: files of a folder, and parts of the error line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

Files = dict[str, Any]


def write_file(file: Path, content: Any) -> None:
    """Write a file: text, bytes, the rows of JSON lines, or the columns of a parquet file."""
    if isinstance(content, dict):
        parquet.write_table(pa.table(content), file)
        return
    if isinstance(content, list):
        content = "".join(f"{json.dumps(row)}\n" for row in content)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def write_files(folder: Path, files: Files) -> None:
    """Write files, and folders whose names end in a slash; without a validation split, it equals that of training."""
    for name, content in files.items():
        if name.endswith("/"):
            (folder / name).mkdir(parents=True)
            continue
        folder.mkdir(exist_ok=True)
        write_file(folder / name, content)
        if (other := name.replace("train", "validation")) not in files and "validation" not in " ".join(files):
            write_file(folder / other, content)


def insert_folder(value: Any, folder: Path) -> Any:
    """Replace FOLDER in the texts of a value."""
    if isinstance(value, dict):
        return {key: insert_folder(child, folder) for key, child in value.items()}
    return value.replace("FOLDER", str(folder)) if isinstance(value, str) else value


def has_parts(line: str, message: str) -> bool:
    """Return whether a line has all parts of a message, which " ... " separates, in their order."""
    start = 0
    for part in message.split(" ... "):
        start = line.find(part, start)
        if start < 0:
            return False
        start += len(part)
    return True
