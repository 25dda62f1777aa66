"""Rows of JSON: an object a line, or one list of objects."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from adadepth.errors import DataError

_MOST_TIMES, _PART = 100, 2**20  # a packed file opens to no more times its size, and some parts of so many bytes
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # written out, as JSON may
_NEEDED = "an object a line, or one list of objects, is needed"
_BYTE_ORDER_MARK = "\ufeff"


class JsonRow(NamedTuple):
    """An object of JSON, and the number of its line from 1 on, or of its place in a list from 0 on."""

    unit: str
    number: int
    cells: dict[str, Any]


def read_json_rows(key: str, file: Path) -> Iterator[JsonRow]:
    """Yield the rows of a file of JSON, which may be packed with gzip; every value stays what JSON says it is.

    Args:
        key: Setting that names the file, for messages.
        file: UTF-8.

    Raises:
        DataError: It is not JSON, or a row is no object; the message names its line.
    """
    if _begins_a_list(key, file):
        for number, cells in enumerate(_read_list(key, file)):
            yield JsonRow("row", number, _checked(key, file, "row", number, cells, json.dumps(cells)))
        return
    for number, line in enumerate(_lines(key, file), start=1):
        if line.strip():
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _unreadable(key, file, f"line {number}: {_reason(error)}; {_NEEDED}") from error
            yield JsonRow("line", number, _checked(key, file, "line", number, cells, line))


def _checked(key: str, file: Path, unit: str, number: int, cells: Any, text: str) -> dict[str, Any]:
    if not isinstance(cells, dict):
        raise _unreadable(key, file, f"{unit} {number} is no object")
    if _SURROGATE.search(text) and re.search("[\ud800-\udfff]", json.dumps(cells, ensure_ascii=False)):
        raise _unreadable(key, file, f"{unit} {number} holds half of a surrogate pair, which is no character")
    return cells


def _begins_a_list(key: str, file: Path) -> bool:
    return next((line.lstrip()[0] == "[" for line in _lines(key, file) if line.strip()), False)


def _read_list(key: str, file: Path) -> list[Any]:
    """Return the rows of a file that is one list, or lines of lists, which are refused row by row."""
    text = "\n".join(_lines(key, file))
    try:
        return cast(list[Any], json.loads(text))
    except (ValueError, RecursionError) as error:
        raise _unreadable(key, file, _reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, column {error.colno}" if error.lineno == 1 else f"line {error.lineno}: {error.msg}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _unreadable(key: str, file: Path, reason: str) -> DataError:
    return DataError(f"{key}={file}: not a readable json file ({reason})")


def _lines(key: str, file: Path) -> Iterator[str]:
    r"""Yield the lines without their ends, ``\n``, ``\r\n`` or ``\r``, which no text of JSON holds as it is."""
    offset = 0
    with _opened(file) as stream:
        for raw in stream:
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{key}={file}: not UTF-8 at byte {offset + error.start} (0x{raw[error.start]:02x}); "
                    "convert the file to UTF-8"
                ) from error
            line = (line.removeprefix(_BYTE_ORDER_MARK) if offset == 0 else line).removesuffix("\n").removesuffix("\r")
            yield from line.split("\r")
            offset += len(raw)


def _opened(file: Path) -> IO[bytes]:
    if file.suffix != ".gz":
        return file.open("rb")
    stat = file.stat()
    _check_packed(file, stat.st_size, stat.st_mtime_ns)
    return cast(IO[bytes], gzip.open(file))


@cache
def _check_packed(file: Path, size: int, modified: int) -> None:
    """Refuse a file that opens to far more than text does, of which a third or a tenth remains; looked at once."""
    opened = 0
    with file.open("rb") as packed, gzip.open(packed) as unpacked:
        while part := unpacked.read(_PART):
            opened += len(part)
            if opened > _PART * 64 + _MOST_TIMES * packed.tell():
                raise DataError(f"{file}: opens to more than {_MOST_TIMES} times its size; unpack it to read it anyway")
