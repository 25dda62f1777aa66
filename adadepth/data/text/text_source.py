"""Running text as rows that can be read repeatedly, from local files or from the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, cast

from adadepth.data.cache import CheckedSource
from adadepth.data.text.hub import HubSource
from adadepth.data.text.local_files import find_files_by_use, mark_lines

if TYPE_CHECKING:
    from adadepth.config.data import TextConfig


def _mark_all() -> Iterator[bool]:
    return repeat(True)


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
        firsts: Function that yields for each row whether it is the first row of a file or a row of a table.
    """

    rows: Callable[..., Iterator[str]]
    key: Callable[[], Any]
    are_documents: bool = True
    characters: int | None = None
    sources: Sequence[CheckedSource] = ()
    firsts: Callable[[], Iterator[bool]] = _mark_all

    def lines(self, rows: int | None = None) -> Iterator[str]:
        """Yield the lines of the text, or of its first ``rows`` rows, without line ends. Blank lines are included."""
        for row in islice(self.rows(), rows):
            yield from _split_lines(row)

    def marked_lines(self, separator: str) -> Iterator[tuple[str, bool]]:
        """Yield each line of the text, and whether it begins a document.

        With the separator `auto`, a row that is a document is not divided. With `file`, neither is a file of lines.
        """
        if separator != "file" and not (separator == "auto" and self.are_documents):
            return mark_lines(self.lines(), separator)
        rows = zip(self.rows(), self.firsts(), strict=False)  # the marks of whole tables have no end
        return ((line, first and number == 0) for row, first in rows for number, line in enumerate(_split_lines(row)))


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
