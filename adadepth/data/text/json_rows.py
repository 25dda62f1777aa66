"""Reading of JSON files that have one object per line or one list of objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from adadepth.data.text.local_files import read_lines
from adadepth.data.text.table import RowLocation
from adadepth.errors import DataError

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # as a JSON escape
_NEEDED = "one object per line, or one list of objects, is needed"


def read_json_rows(key: str, file: Path) -> Iterator[tuple[RowLocation, dict[str, Any]]]:
    """Yield the location and the cells of every row of a JSON file, which may be compressed with gzip.

    Values keep their JSON types.

    Args:
        key: Setting that names the file, for messages.
        file: File in UTF-8.

    Raises:
        DataError: If the file is not JSON, or if a row is not an object. The message names the line.
    """
    label = f"{key}={file}"
    if _is_list(key, file):
        for number, cells in enumerate(_read_list(key, file)):
            location = RowLocation(label, "row", number)
            yield location, _check_row(location, cells, json.dumps(cells))
        return
    for number, line in enumerate(read_lines(key, file), start=1):
        if line.strip():
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _make_error(label, f"line {number}: {_explain_error(error)}; {_NEEDED}") from error
            location = RowLocation(label, "line", number)
            yield location, _check_row(location, cells, line)


def _check_row(location: RowLocation, cells: Any, text: str) -> dict[str, Any]:
    label, unit, number, _ = location
    if not isinstance(cells, dict):
        raise _make_error(label, f"{unit} {number} is not an object")
    if _SURROGATE.search(text) and re.search("[\ud800-\udfff]", json.dumps(cells, ensure_ascii=False)):
        raise _make_error(label, f"{unit} {number} contains an unpaired surrogate, which is not a character")
    return cells


def _is_list(key: str, file: Path) -> bool:
    return next((line.lstrip()[0] == "[" for line in read_lines(key, file) if line.strip()), False)


def _read_list(key: str, file: Path) -> list[Any]:
    """Return the elements of a JSON file that is one list."""
    text = "\n".join(read_lines(key, file))
    try:
        return cast(list[Any], json.loads(text))
    except (ValueError, RecursionError) as error:
        raise _make_error(f"{key}={file}", _explain_error(error)) from error


def _explain_error(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, column {error.colno}" if error.lineno == 1 else f"line {error.lineno}: {error.msg}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _make_error(label: str, reason: str) -> DataError:
    return DataError(f"{label}: not a readable json file ({reason})")
