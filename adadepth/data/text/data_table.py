"""A table of examples, whatever it is read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from adadepth.data.cache import CheckedSource, digest
from adadepth.errors import DataError, nearest

Rows = Mapping[str, list[Any]]  # some rows, as column to values

ROW_PLACES = "\0row"  # beside the columns: where each row stands, for messages; no column is called so


class RowPlace(NamedTuple):
    """Where a row stands: in what file, and its line or, in files without lines, its number from 0 on."""

    label: str
    unit: str
    number: int

    def __str__(self) -> str:
        return f"{self.unit} {self.number} of {self.label}"


@dataclass(frozen=True)
class DataTable:
    """Rows with named columns.

    Attributes:
        label: What it is, for messages.
        columns: The names of the columns.
        class_names: Column to its class names in order, where the data declare them.
        batches: Yields all rows, some at a time, again and again in the same order; `ROW_PLACES` may be beside the
            columns.
        fingerprint: Identifies the content.
        sources: The files that rows are read from; what is cached is checked against them.
    """

    label: str
    columns: list[str]
    class_names: Mapping[str, list[str]]
    batches: Callable[[], Iterator[Rows]]
    fingerprint: Callable[[], list[str]]
    sources: Sequence[CheckedSource] = ()

    def read_batches(self) -> Iterator[Rows]:
        """Yield all rows, some at a time, always with `ROW_PLACES` beside the columns."""
        first = 0
        for batch in self.batches():
            count = count_rows(batch)
            if ROW_PLACES not in batch:
                locations = [RowPlace(self.label, "row", number) for number in range(first, first + count)]
                batch = {**batch, ROW_PLACES: locations}
            yield batch
            first += count

    def count(self) -> int:
        """Return the number of rows, all of which are read for it."""
        return sum(map(count_rows, self.batches()))


def count_rows(batch: Rows) -> int:
    """Return the number of some rows."""
    return len(next(iter(batch.values()), []))


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
        require_column(table.label, table.columns, key, name)


def require_column(label: str, columns: Sequence[str], key: str, name: str) -> None:
    """Fail with the nearest name when there is no column ``name``, which ``key`` names, in what ``label`` says."""
    if name not in columns:
        raise DataError(f"dataset.{key}={name}: {label} has the columns {', '.join(columns)}{nearest(name, columns)}")


def first_texts(table: DataTable, columns: Mapping[str, str], rows: int | None) -> Iterator[str]:
    """Yield the texts in some columns of the first rows, row by row, without missing ones.

    Args:
        table: That has the columns.
        columns: The key of the data set that names each.
        rows: How many are read; None: all.

    Raises:
        DataError: While it is read: a text is not text; the message names the row.
    """
    read = (
        row
        for batch in table.read_batches()
        for row in zip(batch[ROW_PLACES], *(batch[name] for name in columns), strict=True)
    )
    for location, *texts in islice(read, rows):
        for (column, key), text in zip(columns.items(), texts, strict=True):
            if require_text(text, key, column, location) is not None:
                yield text


def require_text(value: Any, key: str, column: str, location: RowPlace) -> str | None:
    """Return a cell that is text, or None where it is missing.

    Args:
        value: The cell.
        key: The key of the data set that names its column, for messages.
        column: The column.
        location: Where the row stands.

    Raises:
        DataError: It is something else; the message names the row.
    """
    if value is None or isinstance(value, str):
        return value
    raise DataError(f"dataset.{key}={column}: {location} holds {type(value).__name__}, not text")


def joined(parts: list[DataTable]) -> DataTable:
    """Return one table of the rows of several with the same columns and the same declared classes."""
    first = parts[0]
    for other in parts[1:]:
        if other.class_names != first.class_names:
            raise DataError(f"{other.label}: the classes that it declares are not those of {first.label}")
        if other.columns != first.columns:
            raise DataError(f"{other.label}: its columns {', '.join(other.columns)} are not those of {first.label}")
    return DataTable(
        first.label,
        first.columns,
        first.class_names,
        lambda: (batch for part in parts for batch in part.read_batches()),
        lambda: [digest for part in parts for digest in part.fingerprint()],
        [source for part in parts for source in part.sources],
    )
