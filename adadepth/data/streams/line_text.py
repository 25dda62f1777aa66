"""Text as lines: the training, held-out and test text of a data set of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from adadepth.config import CorpusConfig
from adadepth.data.cache import CACHE_FORMAT, CheckedSource, digest
from adadepth.data.text.corpora import Split
from adadepth.data.text.hub import HubSource, load_hub_rows
from adadepth.data.text.local_files import (
    TABLE_SUFFIXES,
    Files,
    estimate_characters,
    find_files_by_use,
    mark_lines,
    read_lines,
)
from adadepth.data.text.sources import digest_sources, open_sources
from adadepth.data.text.table_files import read_file_rows
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config import StreamConfig


@dataclass(frozen=True)
class LineText:
    """Text that can be read repeatedly, line by line and in order.

    Attributes:
        rows: Function that yields the rows of the source, which are lines of plain text, rows of a table, or documents.
        key: Function that returns values which identify the text.
        are_documents: Whether the rows are documents instead of lines.
        characters: Approximate number of characters, or None if it is unknown before the text is read.
        sources: Source files of the rows.
    """

    rows: Callable[[], Iterator[str]]
    key: Callable[[], str]
    are_documents: bool = False
    characters: int | None = None
    sources: Sequence[CheckedSource] = ()

    def lines(self, rows: int | None = None) -> Iterator[str]:
        """Yield the lines of the text, or of its first ``rows`` rows, without line ends. Blank lines are included."""
        for row in islice(self.rows(), rows):
            yield from _split_lines(row)

    def mark_beginnings(self, separator: str) -> Iterator[bool]:
        """Yield for each line of the text whether it begins a document.

        With the separator `auto`, a row that is a document is not divided.
        """
        if separator == "auto" and self.are_documents:
            return (number == 0 for row in self.rows() for number, _ in enumerate(_split_lines(row)))
        return (begins for _, begins in mark_lines(self.lines(), separator))


def _split_lines(row: str) -> Iterator[str]:
    return (line.rstrip("\r") for line in row.removesuffix("\n").split("\n"))


def open_texts(dataset: StreamConfig) -> dict[str, LineText]:
    """Open the texts ``train``, ``evaluation`` and, if it exists, ``test``.

    If neither the configuration nor the file names define a held-out text, the last ``evaluation_fraction`` of the rows
    is held out. For the embedded corpus, the documents that `Split` selects are held out. This function reads no text
    yet, but it raises an error for missing files.

    Raises:
        DataError: If a file is missing, or if the text has fewer than two rows.
    """
    if dataset.source == "embedded":
        split = Split(CorpusConfig(name=dataset.name, evaluation_fraction=dataset.evaluation_fraction))
        return {
            "train": LineText(split.train, lambda: digest("train", split.key), True),
            "evaluation": LineText(split.evaluation, lambda: digest("evaluation", split.key), True),
        }
    column = dataset.text_column
    if dataset.source == "local":
        texts = {use: _open_local(files, column) for use, files in find_files_by_use(dataset).items()}
    else:
        entries = {"train": dataset.hub, "evaluation": dataset.evaluation_hub, "test": dataset.test_hub}
        texts = {use: _open_hub(hub_entries, column) for use, hub_entries in entries.items() if hub_entries}
    return texts if "evaluation" in texts else {**texts, **_hold_out(texts["train"], dataset)}


def _open_local(named_files: Files, column: str) -> LineText:
    key, files = named_files

    def rows() -> Iterator[str]:
        for file in files:
            is_table = file.name.endswith(TABLE_SUFFIXES)
            yield from read_file_rows(key, file, column) if is_table else read_lines(key, file)

    are_tables = all(file.name.endswith(TABLE_SUFFIXES) for file in files)
    sources = open_sources(key, files)
    identity = cache(lambda: digest(CACHE_FORMAT, digest_sources(sources), column))
    return LineText(rows, identity, are_tables, estimate_characters(files), sources)


def _open_hub(entries: list[dict[str, Any]], column: str) -> LineText:
    def rows() -> Iterator[str]:
        sources = (load_hub_rows(entry, column, streaming=False, shard=0, shards=1)[0] for entry in entries)
        return chain.from_iterable(sources)

    sources = list(map(HubSource, entries))
    identity = cache(lambda: digest(CACHE_FORMAT, [source.digest() for source in sources], column))
    return LineText(rows, identity, True, sources=sources)


def _hold_out(whole: LineText, dataset: StreamConfig) -> dict[str, LineText]:
    fraction = dataset.evaluation_fraction

    @cache
    def count_training_rows() -> int:
        count = sum(1 for _ in whole.rows())
        if count < 2:
            raise DataError(
                f"dataset.name={dataset.name}: {count} line(s) or row(s) found, but a held-out text needs at least "
                f"2; give dataset.evaluation_{'path' if dataset.source == 'local' else 'hub'}=..."
            )
        return count - min(max(1, round(fraction * count)), count - 1)

    def part(name: str, cut: Callable[[], Iterator[str]]) -> LineText:
        key = cache(lambda: digest(name, whole.key(), fraction))
        return LineText(cut, key, whole.are_documents, whole.characters, whole.sources)

    return {
        "train": part("train", lambda: islice(whole.rows(), count_training_rows())),
        "evaluation": part("evaluation", lambda: islice(whole.rows(), count_training_rows(), None)),
    }
