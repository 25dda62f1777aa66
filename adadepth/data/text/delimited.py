"""Reading of CSV and TSV files with a header line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from adadepth.data.text.local_files import read_lines
from adadepth.data.text.sources import digest_sources, open_sources
from adadepth.data.text.table import ROW_LOCATIONS, DataTable, RowLocation, Rows
from adadepth.errors import DataError

DELIMITERS = {".csv": ",", ".tsv": "\t"}
_ROWS_AT_ONCE = 1000
_LONGEST_CELL = 2**27  # characters; without a limit an unclosed quote would take all memory
_CELL_SHOWN = 40  # characters of a cell in a message


def detect_csv_delimiter(file: Path, key: str = "dataset.path") -> str:
    """Return the delimiter of a CSV file, which is a comma, or a semicolon or tab as in files of some spreadsheets.

    Args:
        file: File with a header in its first line.
        key: Setting that names the file, for messages.
    """
    unquoted = re.sub('"[^"]*"', "", next(read_lines(key, file), ""))
    return max(",;\t", key=unquoted.count)


def open_delimited_table(file: Path, key: str) -> DataTable:
    """Open a CSV or TSV file with a header line as a table.

    CSV files have quoted fields. TSV files do not, because those of GLUE contain single quote marks.

    Raises:
        DataError: If the file is not readable, now or while the table is read. The message names the file and the line
            of an invalid row.
    """
    label, sources = f"{key}={file}", open_sources(key, [file])
    delimiter = detect_csv_delimiter(file, key) if file.suffix == ".csv" else DELIMITERS[file.suffix]
    columns = next((row for _, row in _read_rows(file, key, delimiter)), [])
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise DataError(f"{label}: its header has the column {twice[0]} {columns.count(twice[0])} times")

    def batches() -> Iterator[Rows]:
        rows = islice(_read_rows(file, key, delimiter), 1, None)
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            for location, row in batch:
                if len(row) != len(columns):
                    raise DataError(f"{location} has {len(row)} fields, its header {len(columns)}")
            cells: Rows = {name: [row[position] for _, row in batch] for position, name in enumerate(columns)}
            yield {**cells, ROW_LOCATIONS: [location for location, _ in batch]}

    return DataTable(label, columns, {}, batches, partial(digest_sources, sources), sources)


def _read_rows(file: Path, key: str, delimiter: str) -> Iterator[tuple[RowLocation, list[str]]]:
    """Yield every row of a CSV or TSV file that is not blank, with the location of its first line.

    Quotes follow RFC 4180. A quoted field may contain line ends, and only a separator or a line end may follow it.
    """
    row_lines: list[str] = []  # lines of the current row

    def lines() -> Iterator[str]:
        for line in read_lines(key, file, with_ends=True):
            row_lines.append(line)
            yield line

    csv.field_size_limit(_LONGEST_CELL)
    if file.suffix == ".csv":
        reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    else:
        reader = csv.reader(lines(), delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    location = RowLocation(f"{key}={file}", "line", 1)
    try:
        for row in reader:
            if row:
                yield location, row
            location = location._replace(number=reader.line_num + 1)
            row_lines.clear()
    except csv.Error as error:
        raise DataError(_explain_error(error, row_lines, location, delimiter)) from error


def _explain_error(error: csv.Error, lines: list[str], location: RowLocation, delimiter: str) -> str:
    """Return the error message for a row of a CSV file. For an unclosed quote, it names the field and the line."""
    text, position = "".join(lines), 0
    mark = re.escape(delimiter)
    field = re.compile(rf'(?:^|(?<=[{mark}\r\n]))"(?:[^"]+|"")*+(?P<end>"(?=[{mark}\r\n]|$)|)')
    while match := field.search(text, position):
        if not match["end"]:
            lines_before = len(re.findall("\r\n|\r|\n", text[: match.start()]))
            start = location._replace(number=location.number + lines_before)
            excerpt = text[match.start() : match.start() + _CELL_SHOWN].splitlines()[0]
            return (
                f"{start}: the field {excerpt!r} begins with a quote that is not closed before a separator or "
                "the end of a line; to write a quote as text, double it inside a quoted field"
            )
        position = match.end()
    return f"{location}: {error}"
