"""The one place that uses the ``datasets`` library: files of jsonl, parquet and arrow, and data sets of the hub."""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from adadepth.data.text.data_table import DataTable, Rows
from adadepth.data.text.local_files import ARROW_SUFFIXES, JSON_SUFFIXES, text_lines
from adadepth.data.text.sources import digest_sources, open_sources
from adadepth.errors import DataError, nearest
from adadepth.system.places import first_line, require_hub

logger = logging.getLogger(__name__)

_BATCH = 1000  # rows read at a time
_MOST_TIMES, _PART = 100, 2**20  # a packed file opens to no more times its size, and some parts of so many bytes
_warned: set[str] = set()  # subjects of `warn_once`


def file_rows(key: str, file: Path, column: str) -> Iterator[str]:
    """Yield the text of every row of a jsonl, parquet or arrow file, reading a part at a time and copying nothing."""
    with _readable(key, file):
        yield from _texts(f"{key}={file}", _open_file(file), column)


def file_table(key: str, file: Path) -> DataTable:
    """Return a jsonl, parquet or arrow file as a table, read in the same way."""

    def batches() -> Iterator[Rows]:
        with _readable(key, file):
            yield from _open_file(file).iter(batch_size=_BATCH)

    sources = open_sources(key, [file])
    with _readable(key, file):
        rows = _open_file(file)
        columns = rows.column_names or list(next(iter(rows), {}))
    names, fingerprint = _class_names(rows), partial(digest_sources, sources)
    return DataTable(f"{key}={file}", columns, names, batches, fingerprint, sources)


def _open_file(file: Path) -> Any:
    from datasets import load_dataset

    if file.suffix == ".gz":
        stat = file.stat()
        _check_packed(file, stat.st_size, stat.st_mtime_ns)
    return load_dataset(_kind(file), data_files=[str(file)], split="train", streaming=True)


@cache
def _check_packed(file: Path, size: int, modified: int) -> None:
    """Refuse a file that opens to far more than text does, of which a third or a tenth remains; looked at once."""
    opened = 0
    with file.open("rb") as packed, gzip.open(packed) as unpacked:
        while part := unpacked.read(_PART):
            opened += len(part)
            if opened > _PART * 64 + _MOST_TIMES * packed.tell():
                raise DataError(f"{file}: opens to more than {_MOST_TIMES} times its size; unpack it to read it anyway")


def _kind(file: Path) -> str:
    if file.name.endswith(JSON_SUFFIXES):
        return "json"
    return "arrow" if file.name.endswith(ARROW_SUFFIXES) else "parquet"


@contextmanager
def _readable(key: str, file: Path) -> Iterator[None]:
    """Turn what the library says about a damaged file into one line."""
    try:
        yield
    except UnicodeDecodeError:
        for _ in text_lines(key, file):  # finds the byte and names it
            pass
        raise
    except (RuntimeError, OSError, ValueError, EOFError, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{key}={file}: not a readable {_kind(file)} file ({first_line(error)})") from error


def hub_rows(
    entry: Mapping[str, Any], column: str, streaming: bool, shard: int, shards: int
) -> tuple[Iterator[str], bool]:
    """Return the texts of the rows of one hub data set, and whether they are those of part ``shard`` only.

    A streamed set with enough files is shared out by file, so that a reader downloads only its own part; of any other
    all rows are returned. An entry with `streamed` is read as it comes, and nothing of it is kept on the disk.
    """
    from datasets import load_dataset

    is_streamed = streaming or bool(entry.get("streamed"))
    rows = _ask_hub(
        entry,
        lambda: load_dataset(
            entry["path"], entry.get("name"), split=entry.get("split") or "train", streaming=is_streamed
        ),
    )
    by_file = streaming and rows.num_shards >= shards
    if by_file and shards > 1:
        rows = rows.shard(num_shards=shards, index=shard)
    return _unbroken(entry, _texts(_label(entry), rows, column)), by_file


def _unbroken(entry: Mapping[str, Any], texts: Iterator[str]) -> Iterator[str]:
    """Tell a connection that breaks while rows are read in one line."""
    try:
        yield from texts
    except DataError:
        raise
    except Exception as error:  # as in `_ask_hub`
        raise DataError(f"{_label(entry)}: {first_line(error)}; start again, or read local files") from error


def hub_tables(entry: Mapping[str, Any]) -> dict[str, DataTable]:
    """Return every split of a hub data set as a table."""
    from datasets import load_dataset

    source = HubSource(entry)
    identity = source.digest()[:-1]  # before rows are read
    splits = _ask_hub(entry, lambda: load_dataset(entry["path"], entry.get("name")))
    source.check()
    return {
        str(split): DataTable(
            _label(entry),
            rows.column_names,
            _class_names(rows),
            partial(rows.iter, batch_size=_BATCH),
            partial(list, [*identity, str(split)]),
        )
        for split, rows in splits.items()
    }


def _class_names(rows: Any) -> dict[str, list[str]]:
    """Return the declared classes of each column, be it one a row or a list of them."""
    features = {name: getattr(feature, "feature", feature) for name, feature in (rows.features or {}).items()}
    return {name: list(feature.names) for name, feature in features.items() if hasattr(feature, "names")}


def hub_digest(entry: Mapping[str, Any]) -> list[str]:
    """Return what identifies the content of a hub data set: names, split, and the hash of its revision's files."""
    from datasets import load_dataset_builder

    builder = _ask_hub(entry, lambda: load_dataset_builder(entry["path"], entry.get("name")))
    return [str(entry["path"]), str(builder.config_id), str(builder.hash), str(entry.get("split") or "train")]


class HubSource:
    """A data set of the hub, or a folder in place of one, as it is when its digest is asked for."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.entry = entry
        self._digest: list[str] | None = None

    def digest(self) -> list[str]:
        """Return what `hub_digest` returned when it was asked first."""
        if self._digest is None:
            self._digest = hub_digest(self.entry)
        return self._digest

    def check(self) -> None:
        """Ask again where the data set is a folder; a revision of the hub does not change.

        Raises:
            DataError: The files of the folder are not what they were.
        """
        if (
            self._digest is not None
            and Path(str(self.entry["path"])).exists()
            and hub_digest(self.entry) != self._digest
        ):
            raise DataError(
                f"{_label(self.entry)}: its files changed while they were read; nothing made from them is kept, start "
                "again when nobody writes to them"
            )


def _label(entry: Mapping[str, Any]) -> str:
    return "dataset.hub=" + "/".join(str(entry[key]) for key in ("path", "name") if entry.get(key))


def _ask_hub(entry: Mapping[str, Any], ask: Any) -> Any:
    from huggingface_hub import constants

    alternative = "read local files with dataset.path=..."
    if not Path(str(entry["path"])).exists():
        require_hub(_label(entry), alternative)
        if constants.HF_HUB_OFFLINE:
            alternative = f"unset HF_HUB_OFFLINE to ask the hub, or {alternative}"
    try:
        return ask()
    except Exception as error:  # of three libraries, one of which has errors of its own for a broken connection
        raise DataError(f"{_label(entry)}: {first_line(error)}; {alternative}") from error


def _texts(label: str, rows: Any, column: str) -> Iterator[str]:
    columns = rows.column_names or list(next(iter(rows), {}))
    if column not in columns:
        raise DataError(
            f"dataset.text_column={column}: {label} has the columns {', '.join(columns)}{nearest(column, columns)}"
        )
    seen = missing = 0
    try:
        for batch in rows.select_columns([column]).iter(batch_size=_BATCH):
            for text in batch[column]:
                seen, missing = seen + 1, missing + (text is None)
                if text is not None and not isinstance(text, str):
                    kind = type(text).__name__
                    raise DataError(f"dataset.text_column={column}: {label} holds {kind} there, not text")
                if text is not None:
                    yield text
    finally:  # not all may be wanted
        if missing:
            warn_once(
                f"dataset.text_column={column}: {label}", f"{missing} of {seen} rows hold no text, and are left out"
            )


def warn_once(subject: str, message: str) -> None:
    """Say something about a text, which is read several times and not always to its end."""
    if subject not in _warned:
        _warned.add(subject)
        logger.warning("%s: %s", subject, message)
