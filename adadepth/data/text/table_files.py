"""Reading of tables from JSON, parquet and Arrow files, and from folders that the ``datasets`` library saved."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from adadepth.data.text.hub import iter_column_texts, load_saved, parse_metadata_classes, read_declared_classes
from adadepth.data.text.json_rows import read_json_rows
from adadepth.data.text.local_files import ARROW_SUFFIXES, JSON_SUFFIXES
from adadepth.data.text.sources import digest_sources, open_sources
from adadepth.data.text.table import ROW_LOCATIONS, DataTable, Rows, require_columns
from adadepth.errors import DataError
from adadepth.runtime.hub_access import get_first_line

_ROWS_AT_ONCE = 1000
_SPLITS, _STATE = "dataset_dict.json", "state.json"  # marks of `save_to_disk`: a folder of splits, and one split


def read_file_rows(key: str, file: Path, column: str) -> Iterator[str]:
    """Yield the text of every row of a jsonl, parquet or arrow file. The file is read in parts and without copies."""
    table = open_file_table(key, file)
    require_columns(table, "text_column", [column])
    if file.name.endswith(JSON_SUFFIXES):
        yield from iter_column_texts(table.label, table.batches(), column)
    else:
        yield from iter_column_texts(table.label, _read_columns(key, file, [column]), column)


def open_file_table(key: str, file: Path) -> DataTable:
    """Open a jsonl, parquet or arrow file as a table that is read in parts.

    Args:
        key: Setting that names the file, for messages.
        file: File. Its extension determines the format.

    Raises:
        DataError: If the file is not readable, now or while the table is read. The message is one line.
    """
    with _wrap_read_errors(key, file):
        if file.name.endswith(JSON_SUFFIXES):
            return _open_json_table(key, file)
        return _open_column_table(key, file)


def _open_json_table(key: str, file: Path) -> DataTable:
    label, sources = f"{key}={file}", open_sources(key, [file])
    first = islice(read_json_rows(key, file), _ROWS_AT_ONCE)
    columns = list(dict.fromkeys(name for _, cells in first for name in cells))

    def batches() -> Iterator[Rows]:
        with _wrap_read_errors(key, file):
            rows = read_json_rows(key, file)
            while batch := list(islice(rows, _ROWS_AT_ONCE)):
                columns_of_batch = {name: [cells.get(name) for _, cells in batch] for name in columns}
                yield {**columns_of_batch, ROW_LOCATIONS: [location for location, _ in batch]}

    return DataTable(label, columns, {}, batches, partial(digest_sources, sources), sources)


def _open_column_table(key: str, file: Path) -> DataTable:
    sources = open_sources(key, [file])
    schema = _read_schema(file)
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise DataError(f"{key}={file}: has {schema.names.count(twice[0])} columns named {twice[0]}")
    batches = partial(_read_columns, key, file, schema.names)
    fingerprint = partial(digest_sources, sources)
    return DataTable(f"{key}={file}", schema.names, _read_classes(schema), batches, fingerprint, sources)


def _read_columns(key: str, file: Path, columns: list[str]) -> Iterator[Rows]:
    with _wrap_read_errors(key, file):
        for batch in _iter_record_batches(file, columns):
            yield batch.to_pydict()


def _read_schema(file: Path) -> Any:
    from pyarrow import parquet

    return _map_arrow(file).schema if file.name.endswith(ARROW_SUFFIXES) else parquet.read_schema(file)


def _iter_record_batches(file: Path, columns: list[str]) -> Iterator[Any]:
    """Yield record batches of some columns of a parquet or Arrow file."""
    from pyarrow import parquet

    if file.name.endswith(ARROW_SUFFIXES):
        yield from _map_arrow(file).select(columns).to_batches(max_chunksize=_ROWS_AT_ONCE)
        return
    with parquet.ParquetFile(file) as opened:
        yield from opened.iter_batches(_ROWS_AT_ONCE, columns=columns)


def _map_arrow(file: Path) -> Any:
    """Open an Arrow file as a memory map.

    The file has the streaming format of ``datasets`` or the file format.
    """
    import pyarrow

    source = pyarrow.memory_map(str(file))
    try:
        reader = pyarrow.ipc.open_stream(source)
    except pyarrow.ArrowInvalid:
        reader = pyarrow.ipc.open_file(source)
    return reader.read_all()


def _read_classes(schema: Any) -> dict[str, list[str]]:
    """Return the class names of each column that the ``datasets`` library declared in a file's metadata."""
    written = (schema.metadata or {}).get(b"huggingface")
    features = None if written is None else (json.loads(written).get("info") or {}).get("features")
    return parse_metadata_classes(features) if features else {}


@contextmanager
def _wrap_read_errors(key: str, path: Path) -> Iterator[None]:
    """Convert an error of a library about a damaged file or folder into a one-line error."""
    try:
        yield
    except (RuntimeError, OSError, ValueError, LookupError, TypeError, EOFError, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{key}={path}: not a readable {_name_kind(path)} ({get_first_line(error)})") from error


def _name_kind(path: Path) -> str:
    if path.is_dir():
        return "folder of save_to_disk"
    if path.name.endswith(JSON_SUFFIXES):
        return "json file"
    return "arrow file" if path.name.endswith(ARROW_SUFFIXES) else "parquet file"


# --- folders of `save_to_disk`


def is_saved(folder: Path) -> bool:
    """Return whether a folder contains one table that `save_to_disk` wrote."""
    return (folder / _STATE).is_file()


def list_saved_splits(folder: Path) -> dict[str, Path]:
    """Return the folder of each split that `save_to_disk` wrote, or an empty mapping for any other folder."""
    if not (folder / _SPLITS).is_file():
        return {}
    return {entry.name: entry for entry in sorted(folder.iterdir()) if is_saved(entry)}


def open_saved_table(key: str, folder: Path) -> DataTable:
    """Open a table that `save_to_disk` wrote.

    Raises:
        DataError: If the table is not readable, now or while it is read. The message is one line.
    """
    with _wrap_read_errors(key, folder):
        rows = load_saved(folder)

    def batches() -> Iterator[Rows]:
        with _wrap_read_errors(key, folder):
            yield from rows.iter(batch_size=_ROWS_AT_ONCE)

    sources = open_sources(key, sorted(file for file in folder.iterdir() if file.is_file()))
    classes = read_declared_classes(rows.features)
    return DataTable(f"{key}={folder}", rows.column_names, classes, batches, partial(digest_sources, sources), sources)
