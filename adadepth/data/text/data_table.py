"""A table of examples, whatever it is read from."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from adadepth.data.cache import CACHE_FORMAT, cached_folder, digest
from adadepth.errors import DataError, nearest

Rows = Mapping[str, list[Any]]  # some rows, as column to values

_MINUS_ONE = "-1 is taken for a class; data sets that mark rows without a label by it need these left out"


@dataclass(frozen=True)
class DataTable:
    """Rows with named columns.

    Attributes:
        label: What it is, for messages.
        columns: The names of the columns.
        class_names: Column to its class names in order, where the data declare them.
        batches: Yields all rows, some at a time, again and again in the same order.
        fingerprint: Identifies the content.
    """

    label: str
    columns: list[str]
    class_names: Mapping[str, list[str]]
    batches: Callable[[], Iterator[Rows]]
    fingerprint: Callable[[], list[str]]


def table_of_rows(label: str, rows: Sequence[Mapping[str, Any]]) -> DataTable:
    """Return a table of rows in memory, which have the same columns and values that JSON knows."""
    columns = list(rows[0]) if rows else []

    def batches() -> Iterator[Rows]:
        if rows:
            yield {name: [row[name] for row in rows] for name in columns}

    return DataTable(label, columns, {}, batches, lambda: [digest([list(row.values()) for row in rows])])


def require_columns(table: DataTable, key: str, names: Sequence[str]) -> None:
    """Fail with the nearest name when a table lacks a column that ``key`` names."""
    for name in names:
        if name not in table.columns:
            known = ", ".join(table.columns)
            raise DataError(
                f"dataset.{key}={name}: {table.label} has the columns {known}{nearest(name, table.columns)}"
            )


def first_texts(table: DataTable, columns: Mapping[str, str], rows: int | None) -> Iterator[str]:
    """Yield the texts in some columns of the first rows, row by row, without missing ones.

    Args:
        table: That has the columns.
        columns: The key of the data set that names each.
        rows: How many are read; None: all.

    Raises:
        DataError: While it is read: a text is not text; the message names the row.
    """
    found = (row for batch in table.batches() for row in zip(*map(batch.get, columns), strict=True))
    for number, row in enumerate(islice(found, rows)):
        for column, text in zip(columns, row, strict=True):
            if isinstance(text, str):
                yield text
            elif text is not None:
                kind = type(text).__name__
                raise DataError(
                    f"dataset.{columns[column]}={column}: row {number} of {table.label} holds {kind}, not text"
                )


def with_lists(table: DataTable, column: str, separator: str) -> DataTable:
    """Return a table whose column holds lists, of what stood between separators; what is missing is an empty list."""

    def listed(value: Any) -> list[Any]:
        if isinstance(value, list):
            return value
        return [] if value is None else [part for each in str(value).split(separator) if (part := each.strip())]

    def batches() -> Iterator[Rows]:
        for batch in table.batches():
            yield {**batch, column: [listed(value) for value in batch[column]]}

    return replace(table, batches=batches, fingerprint=lambda: [*table.fingerprint(), column, separator])


def joined(parts: list[DataTable]) -> DataTable:
    """Return one table of the rows of several with the same columns."""
    first = parts[0]
    for other in parts[1:]:
        if other.columns != first.columns:
            raise DataError(f"{other.label}: its columns {', '.join(other.columns)} are not those of {first.label}")
    return DataTable(
        first.label,
        first.columns,
        first.class_names,
        lambda: chain.from_iterable(part.batches() for part in parts),
        lambda: [digest for part in parts for digest in part.fingerprint()],
    )


logger = logging.getLogger(__name__)


def class_names(
    labels: Sequence[str] | None, key: str, column: str, tables: Sequence[DataTable], root: Path
) -> tuple[str, ...]:
    """Return the classes in order: those configured, those the data declare, or all that some tables hold.

    Args:
        labels: The configured names of classes, if any.
        key: Setting that names the column, for messages.
        column: Where the labels are, one a row or a list of them.
        tables: The first one declares the classes, or all are searched.
        root: Cache folder.

    Raises:
        DataError: There are fewer than two, or one twice.
    """
    if labels:
        source, names = f"dataset.labels={list(labels)}", list(labels)
    else:
        names = tables[0].class_names.get(column) or _ordered(
            name for table in tables for name in _distinct(key, column, table, root)
        )
        if "-1" in names and {"0", "1"} <= set(names):
            logger.warning("dataset.%s=%s: %s", key, column, _MINUS_ONE)
        source = f"dataset.{key}={column}: {tables[0].label} has the classes {', '.join(names) or 'none'}"
    if len(names) < 2 or len(set(names)) < len(names):
        raise DataError(f"{source}; at least two different ones are needed")
    return tuple(names)


def _distinct(key: str, column: str, table: DataTable, root: Path) -> list[str]:
    """Return the different labels of a table in order; found once and cached."""
    is_of_text = key == "label_column"
    regression = "use dataset.problem=regression 'dataset.metrics=[pearson,mse]'"
    instead = regression if is_of_text else "tags are the last column of .conll files"

    def build(folder: Path) -> None:
        values = (value for batch in table.batches() for value in batch[column])
        flat = (label for value in values for label in (value if isinstance(value, list) else [value]))
        try:
            ordered = _ordered(name for name in map(_name, flat) if name is not None)
        except DataError:  # of the file
            raise
        except ValueError as error:
            raise DataError(f"dataset.{key}={column}: {table.label}: {error}") from error
        if numbers := [name for name in ordered if _is_number(name) and "." in name]:
            raise DataError(
                f"dataset.{key}={column}: {table.label} holds values such as {numbers[0]}, not classes; {instead}"
            )
        (folder / "names.json").write_text(json.dumps(ordered), encoding="utf-8")

    folder = cached_folder(root, f"classes-{digest(CACHE_FORMAT, table.fingerprint(), column)}", build)
    names: list[str] = json.loads((folder / "names.json").read_text(encoding="utf-8"))
    return names


def _ordered(names: Iterable[str]) -> list[str]:
    """Return the different names, numbers in numerical order."""
    found = set(names)
    return sorted(found, key=float) if all(map(_is_number, found)) else sorted(found)


def _name(value: Any) -> str | None:
    """Return the text of a label: 3.0, "3.0" and True are ``3``, ``3`` and ``1``; None for what is not there.

    Raises:
        ValueError: It is bytes, which could be text in any encoding.
    """
    if isinstance(value, bytes):
        raise ValueError(f"a name or a number is needed, not bytes such as {value!r}")
    text = "" if value is None else str(int(value) if isinstance(value, bool) else value).strip()
    if text in ("", "nan"):
        return None
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text)


def _is_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def class_reader(names: tuple[str, ...]) -> Callable[[Any], int]:
    """Return the function from what a table holds, a name or a class number, to the class number.

    Where the names are numbers themselves, e.g. 1 to 5 stars, a number is a name.

    Raises:
        ValueError: Of that function: it is neither; the message says what is allowed.
    """
    numbers = {name: number for number, name in enumerate(names)}
    allowed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    if not all(map(_is_number, names)):
        numbers |= {str(number): number for number in range(len(names))}
        allowed = f"0 to {len(names) - 1} or {allowed}"

    def read(value: Any) -> int:
        name = _name(value)
        if name not in numbers:
            raise ValueError(f"allowed are {allowed}{nearest(name, names)}")
        return numbers[name]

    return read


def labels_reader(names: tuple[str, ...]) -> Callable[[Any], np.ndarray]:
    """Return the function from the labels of a row, a list of names or class numbers, to 1 for those and 0, (C,).

    Raises:
        ValueError: Of that function: one is neither; the message says what is allowed.
    """
    read = class_reader(names)

    def read_all(values: list[Any]) -> np.ndarray:
        found = np.zeros(len(names))
        found[[read(value) for value in values]] = 1.0
        return found

    return read_all


def read_value(value: Any) -> float:
    """Return the value of a regression.

    Raises:
        ValueError: It is not a finite number.
    """
    name = _name(value)
    if name is None or not _is_number(name):
        raise ValueError("a finite number is needed")
    return float(name)
