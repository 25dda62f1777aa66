"""Tables of examples: columns, batches of rows, and errors that name a column or a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

from adadepth.data.cache import CheckedSource, digest
from adadepth.errors import DataError, nearest

Rows = Mapping[str, list[Any]]  # a batch of rows, as column to values

ROW_LOCATIONS = "\0row"  # additional column with the location of each row, for messages


class RowLocation(NamedTuple):
    """Location of a row in a file, as every message prints it.

    Attributes:
        label: Setting and name of the file.
        unit: Kind of the number: a ``line``, counted from 1, or a ``row``, counted from 0, in files without lines.
        number: Number of the row, or of its first line.
        word_lines: Line of each word of the row, in formats with one line per word.
    """

    label: str
    unit: Literal["line", "row"]
    number: int
    word_lines: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.label}, {self.unit} {self.number}"

    def locate_word(self, index: int) -> RowLocation:
        """Return the location of a word of the row, which is that of the row if its words have no lines."""
        return RowLocation(self.label, "line", self.word_lines[index]) if self.word_lines else self


@dataclass(frozen=True)
class DataTable:
    """Table of rows with named columns.

    Attributes:
        label: Name of the table, for messages.
        columns: Names of the columns.
        class_names: Mapping from columns to their class names in order, for columns with classes that the data declare.
        batches: Function that yields all rows in batches, in the same order in every call. Batches may have the column
            `ROW_LOCATIONS`.
        fingerprint: Function that returns values which identify the content.
        sources: Source files of the rows. Cached data are checked against them.
    """

    label: str
    columns: list[str]
    class_names: Mapping[str, list[str]]
    batches: Callable[[], Iterator[Rows]]
    fingerprint: Callable[[], list[str]]
    sources: Sequence[CheckedSource] = ()

    def read_batches(self) -> Iterator[Rows]:
        """Yield all rows in batches, to which the column `ROW_LOCATIONS` is added if it is missing."""
        first = 0
        for batch in self.batches():
            count = count_rows(batch)
            if ROW_LOCATIONS not in batch:
                locations = [RowLocation(self.label, "row", number) for number in range(first, first + count)]
                batch = {**batch, ROW_LOCATIONS: locations}
            yield batch
            first += count

    def count(self) -> int:
        """Return the number of rows of the table, after reading all of it."""
        return sum(map(count_rows, self.batches()))


def count_rows(batch: Rows) -> int:
    """Return the number of rows of a batch of table rows."""
    return len(next(iter(batch.values()), []))


def build_table(label: str, rows: Sequence[Mapping[str, Any]]) -> DataTable:
    """Return a table of rows in memory. The rows must have the same columns and JSON values."""
    columns = list(rows[0]) if rows else []

    def batches() -> Iterator[Rows]:
        if rows:
            yield {name: [row[name] for row in rows] for name in columns}

    return DataTable(label, columns, {}, batches, lambda: [digest([list(row.values()) for row in rows])])


def require_columns(table: DataTable, key: str, names: Sequence[str]) -> None:
    """Raise a DataError if a table lacks a column that the setting ``key`` names. The message suggests a name."""
    for name in names:
        require_column(table.label, table.columns, key, name)


def require_column(label: str, columns: Sequence[str], key: str, name: str) -> None:
    """Raise a DataError if ``columns`` lack ``name``, the value of setting ``key``. The message suggests a name."""
    if name not in columns:
        raise DataError(f"dataset.{key}={name}: {label} has the columns {', '.join(columns)}{nearest(name, columns)}")


def read_first_texts(table: DataTable, columns: Mapping[str, str], rows: int | None) -> Iterator[str]:
    """Yield the texts of some columns row by row. Missing texts are skipped.

    Args:
        table: Table that has the columns.
        columns: Mapping from columns to the keys of the data set that name them.
        rows: Number of rows, or None for all rows.

    Raises:
        DataError: If a cell is not text. The message names the row.
    """
    read = (
        row
        for batch in table.read_batches()
        for row in zip(batch[ROW_LOCATIONS], *(batch[name] for name in columns), strict=True)
    )
    for location, *texts in islice(read, rows):
        for (column, key), text in zip(columns.items(), texts, strict=True):
            if require_text(text, key, column, location) is not None:
                yield text


def require_text(value: Any, key: str, column: str, location: RowLocation) -> str | None:
    """Return a table cell as text, or None if the cell is missing.

    Args:
        value: Content of the cell.
        key: Key of the data set that names the column, for messages.
        column: Name of the column.
        location: Location of the row.

    Raises:
        DataError: If the cell has another type. The message names the row.
    """
    if value is None or isinstance(value, str):
        return value
    raise DataError(f"dataset.{key}={column}: {location} holds {type(value).__name__}, not text")


def concatenate_tables(parts: list[DataTable]) -> DataTable:
    """Concatenate tables with the same columns and the same declared classes."""
    first = parts[0]
    for other in parts[1:]:
        if other.class_names != first.class_names:
            raise DataError(f"{other.label}: its declared classes differ from those of {first.label}")
        if other.columns != first.columns:
            raise DataError(f"{other.label}: its columns {', '.join(other.columns)} differ from those of {first.label}")
    return DataTable(
        first.label,
        first.columns,
        first.class_names,
        lambda: (batch for part in parts for batch in part.read_batches()),
        lambda: [digest for part in parts for digest in part.fingerprint()],
        [source for part in parts for source in part.sources],
    )
