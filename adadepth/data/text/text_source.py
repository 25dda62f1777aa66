"""Running text as rows that can be read repeatedly, from local files or from the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from adadepth.data.cache import CheckedSource
from adadepth.data.text.hub import HubSource
from adadepth.data.text.local_files import find_files_by_use, mark_lines

if TYPE_CHECKING:
    from adadepth.config.data import TextConfig


@dataclass(frozen=True)
class TextSource:
    """Text that can be read repeatedly, row by row and in the same order.

    Attributes:
        rows: Function that yields the rows of part ``shard`` of ``shards``, by default all rows. They are documents,
            rows of a table, or lines of plain text.
        key: Function that returns values which identify the text.
        are_documents: Whether the rows are documents instead of lines.
        characters: Approximate number of characters, or None if it is unknown before the text is read.
        sources: Source files or data sets of the rows.
    """

    rows: Callable[..., Iterator[str]]
    key: Callable[[], Any]
    are_documents: bool = True
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


def find_sources_by_use(dataset: TextConfig) -> dict[str, list[CheckedSource]]:
    """Return the local files or the hub data sets of a text by use: ``train`` and, if given, ``evaluation``, ``test``.

    Raises:
        DataError: As for `find_files_by_use`.
    """
    if dataset.source == "local":
        return cast(dict[str, list[CheckedSource]], find_files_by_use(dataset))
    entries = {"train": dataset.hub, "evaluation": dataset.evaluation_hub, "test": getattr(dataset, "test_hub", None)}
    return {use: list(map(HubSource, hub_entries)) for use, hub_entries in entries.items() if hub_entries}
