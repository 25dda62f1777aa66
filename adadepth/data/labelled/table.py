"""A table of examples, whatever it is read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from adadepth.data.cache import digest
from adadepth.errors import DataError, nearest

Rows = Mapping[str, list[Any]]  # some rows, as column to values


@dataclass(frozen=True)
class Table:
    """Rows with named columns.

    Attributes:
        label: What it is, for messages.
        columns: Their names.
        class_names: Column to its class names in order, where the data declare them.
        batches: Yields all rows, some at a time, again and again in the same order.
        fingerprint: Identifies the content.
    """

    label: str
    columns: list[str]
    class_names: Mapping[str, list[str]]
    batches: Callable[[], Iterator[Rows]]
    fingerprint: Callable[[], list[str]]


def table_of_rows(label: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of rows in memory, which have the same columns and values that JSON knows."""
    columns = list(rows[0]) if rows else []

    def batches() -> Iterator[Rows]:
        if rows:
            yield {name: [row[name] for row in rows] for name in columns}

    return Table(label, columns, {}, batches, lambda: [digest([list(row.values()) for row in rows])])


def require_columns(table: Table, key: str, names: Sequence[str]) -> None:
    """Fail with the nearest name when a table lacks a column that ``key`` names."""
    for name in names:
        if name not in table.columns:
            known = ", ".join(table.columns)
            raise DataError(
                f"dataset.{key}={name}: {table.label} has the columns {known}{nearest(name, table.columns)}"
            )


def first_texts(table: Table, columns: Sequence[str], rows: int | None) -> Iterator[str]:
    """Yield the texts in some columns of the first rows, row by row; None: of all rows."""
    found = (row for batch in table.batches() for row in zip(*map(batch.get, columns), strict=True))
    return (text for row in islice(found, rows) for text in row if isinstance(text, str))


def with_lists(table: Table, column: str, separator: str) -> Table:
    """Return a table whose column holds lists, of what stood between separators; what is missing is an empty list."""

    def listed(value: Any) -> list[Any]:
        if isinstance(value, list):
            return value
        return [] if value is None else [part for each in str(value).split(separator) if (part := each.strip())]

    def batches() -> Iterator[Rows]:
        for batch in table.batches():
            yield {**batch, column: [listed(value) for value in batch[column]]}

    return replace(table, batches=batches, fingerprint=lambda: [*table.fingerprint(), column, separator])


def joined(parts: list[Table]) -> Table:
    """Return one table of the rows of several with the same columns."""
    first = parts[0]
    for other in parts[1:]:
        if other.columns != first.columns:
            raise DataError(f"{other.label}: its columns {', '.join(other.columns)} are not those of {first.label}")
    return Table(
        first.label,
        first.columns,
        first.class_names,
        lambda: chain.from_iterable(part.batches() for part in parts),
        lambda: [digest for part in parts for digest in part.fingerprint()],
    )
