"""Text as lines: the training, held-out and test text of a data set of streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from adadepth.config import CorpusConfig
from adadepth.data.cache import CACHE_FORMAT, CheckedSource, digest
from adadepth.data.held_out import count_held_out
from adadepth.data.text.corpora import Split
from adadepth.data.text.hub import load_hub_rows
from adadepth.data.text.local_files import TABLE_SUFFIXES, estimate_characters, read_lines
from adadepth.data.text.sources import digest_sources
from adadepth.data.text.table_files import read_file_rows
from adadepth.data.text.text_source import TextSource, find_sources_by_use

if TYPE_CHECKING:
    from adadepth.config import StreamConfig


def open_texts(dataset: StreamConfig) -> dict[str, TextSource]:
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
            "train": TextSource(split.train, lambda: digest("train", split.key)),
            "evaluation": TextSource(split.evaluation, lambda: digest("evaluation", split.key)),
        }
    column = dataset.text_column
    open_text = _open_local if dataset.source == "local" else _open_hub
    texts = {use: open_text(sources, column) for use, sources in find_sources_by_use(dataset).items()}
    return texts if "evaluation" in texts else {**texts, **_hold_out(texts["train"], dataset)}


def _open_local(sources: list[Any], column: str) -> TextSource:
    def entries() -> Iterator[tuple[str, bool]]:
        for file in sources:
            if file.path.name.endswith(TABLE_SUFFIXES):
                yield from ((row, True) for row in read_file_rows(file.key, file.path, column))
            else:
                yield from ((line, number == 0) for number, line in enumerate(read_lines(file.key, file.path)))

    def rows() -> Iterator[str]:
        return (row for row, _ in entries())

    def firsts() -> Iterator[bool]:
        return (first for _, first in entries())

    paths = [file.path for file in sources]
    are_tables = all(path.name.endswith(TABLE_SUFFIXES) for path in paths)
    return TextSource(rows, _make_key(sources, column), are_tables, estimate_characters(paths), sources, firsts)


def _open_hub(sources: list[Any], column: str) -> TextSource:
    def rows() -> Iterator[str]:
        entries = (source.entry for source in sources)
        return chain.from_iterable(
            load_hub_rows(entry, column, streaming=False, shard=0, shards=1)[0] for entry in entries
        )

    return TextSource(rows, _make_key(sources, column), sources=sources)


def _make_key(sources: list[CheckedSource], column: str) -> Callable[[], str]:
    return cache(lambda: digest(CACHE_FORMAT, digest_sources(sources), column))


def _hold_out(whole: TextSource, dataset: StreamConfig) -> dict[str, TextSource]:
    fraction = dataset.evaluation_fraction

    @cache
    def count_training_rows() -> int:
        count = sum(1 for _ in whole.rows())
        return count - count_held_out(
            count,
            fraction,
            subject=f"dataset.name={dataset.name}",
            unit="line(s) or row(s)",
            advice=f"give dataset.evaluation_{'path' if dataset.source == 'local' else 'hub'}=...",
        )

    def part(name: str, cut: Callable[[Iterator[Any]], Iterator[Any]]) -> TextSource:
        key = cache(lambda: digest(name, whole.key(), fraction))
        return dataclasses.replace(whole, rows=lambda: cut(whole.rows()), key=key, firsts=lambda: cut(whole.firsts()))

    return {
        "train": part("train", lambda rows: islice(rows, count_training_rows())),
        "evaluation": part("evaluation", lambda rows: islice(rows, count_training_rows(), None)),
    }
