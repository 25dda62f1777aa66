"""Loading of data sets from the hub and from saved folders, the only place that uses the ``datasets`` library."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from adadepth.data.text.table import DataTable, Rows, require_column
from adadepth.errors import DataError
from adadepth.runtime.hub_access import check_hub, get_first_line

logger = logging.getLogger(__name__)

_BATCH = 1000  # rows read at a time
_warned: set[str] = set()  # subjects of `warn_once`


def load_hub_rows(
    entry: Mapping[str, Any], column: str, streaming: bool, shard: int, shards: int
) -> tuple[Iterator[str], bool]:
    """Load the texts of a hub data set, and return with them whether they are already limited to part ``shard``.

    A streamed set with enough files is split by file, so that a reader downloads only its own part. Any other set
    yields all rows. An entry with `streamed` is read during the download and is not stored.
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
    return _catch_broken_connection(entry, _iter_texts(_format_label(entry), rows, column)), by_file


def _catch_broken_connection(entry: Mapping[str, Any], texts: Iterator[str]) -> Iterator[str]:
    """Yield texts from the hub, and convert a broken connection into a one-line error."""
    try:
        yield from texts
    except DataError:
        raise
    except Exception as error:  # as in `_ask_hub`
        raise DataError(f"{_format_label(entry)}: {get_first_line(error)}; start again, or read local files") from error


def load_hub_tables(entry: Mapping[str, Any]) -> dict[str, DataTable]:
    """Return every split of a data set on the hub as a table."""
    from datasets import load_dataset

    source = HubSource(entry)
    identity = source.digest()[:-1]  # before rows are read
    splits = _ask_hub(entry, lambda: load_dataset(entry["path"], entry.get("name")))
    source.check()
    return {
        str(split): DataTable(
            _format_label(entry),
            rows.column_names,
            read_declared_classes(rows.features),
            partial(rows.iter, batch_size=_BATCH),
            partial(list, [*identity, str(split)]),
        )
        for split, rows in splits.items()
    }


def read_declared_classes(features: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Return the declared classes of each column that holds labels or lists of labels."""
    inner = {name: getattr(feature, "feature", feature) for name, feature in (features or {}).items()}
    return {name: list(feature.names) for name, feature in inner.items() if hasattr(feature, "names")}


def parse_metadata_classes(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Parse the class names of each column from the metadata that the ``datasets`` library stores in a file."""
    from datasets import Features

    return read_declared_classes(Features.from_dict(dict(features)))


def load_saved(folder: Path) -> Any:
    """Load a table that `save_to_disk` wrote, with its values as plain Python values."""
    from datasets import load_from_disk

    return load_from_disk(str(folder)).with_format(None)


def digest_hub_entry(entry: Mapping[str, Any]) -> list[str]:
    """Return values that identify a hub data set in cache names: name, split, and the hash of its revision's files."""
    from datasets import load_dataset_builder

    builder = _ask_hub(entry, lambda: load_dataset_builder(entry["path"], entry.get("name")))
    return [str(entry["path"]), str(builder.config_id), str(builder.hash), str(entry.get("split") or "train")]


class HubSource:
    """Data set on the hub or in a local folder, which can detect whether it has changed since it was first read."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.entry = entry
        self._digest: list[str] | None = None

    def digest(self) -> list[str]:
        """Return the values that identify the data set, in the state in which it was first read."""
        if self._digest is None:
            self._digest = digest_hub_entry(self.entry)
        return self._digest

    def check(self) -> None:
        """Raise an error if a local folder has changed since its first digest. A revision on the hub never changes.

        Raises:
            DataError: If the files of the folder have changed.
        """
        if (
            self._digest is not None
            and Path(str(self.entry["path"])).exists()
            and digest_hub_entry(self.entry) != self._digest
        ):
            raise DataError(
                f"{_format_label(self.entry)}: its files changed while they were read; nothing was stored, so "
                "start again when no process writes to them"
            )


def _format_label(entry: Mapping[str, Any]) -> str:
    return "dataset.hub=" + "/".join(str(entry[key]) for key in ("path", "name") if entry.get(key))


def _ask_hub(entry: Mapping[str, Any], ask: Any) -> Any:
    from huggingface_hub import constants

    alternative = "read local files with dataset.path=..."
    if not Path(str(entry["path"])).exists():
        check_hub(_format_label(entry), alternative)
        if constants.HF_HUB_OFFLINE:
            alternative = f"unset HF_HUB_OFFLINE to ask the hub, or {alternative}"
    try:
        return ask()
    except Exception as error:  # of three libraries, one of which has errors of its own for a broken connection
        raise DataError(f"{_format_label(entry)}: {get_first_line(error)}; {alternative}") from error


def _iter_texts(label: str, rows: Any, column: str) -> Iterator[str]:
    require_column(label, rows.column_names or list(next(iter(rows), {})), "text_column", column)
    yield from iter_column_texts(label, rows.select_columns([column]).iter(batch_size=_BATCH), column)


def iter_column_texts(label: str, batches: Iterable[Rows], column: str) -> Iterator[str]:
    """Yield the texts of a column, and log a warning about missing ones.

    Raises:
        DataError: If a cell is not text.
    """
    seen = missing = 0
    try:
        for batch in batches:
            for text in batch[column]:
                seen, missing = seen + 1, missing + (text is None)
                if text is not None and not isinstance(text, str):
                    kind = type(text).__name__
                    raise DataError(f"dataset.text_column={column}: {label} holds {kind} there, not text")
                if text is not None:
                    yield text
    finally:  # the reader may stop early
        if missing:
            warn_once(
                f"dataset.text_column={column}: {label}", f"{missing} of {seen} rows contain no text and are skipped"
            )


def warn_once(subject: str, message: str) -> None:
    """Log a warning about a data set only once, even if it is read several times."""
    if subject not in _warned:
        _warned.add(subject)
        logger.warning("%s: %s", subject, message)
