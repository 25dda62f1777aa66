"""Editable grids for the interactive demo: an example as text, one symbol per cell, and the parsing of an edited text.

A grid consists of rows of symbols in the order of the tokens, with one token for each symbol. Its text form has one
line for each row. Spaces separate the symbols if any symbol has several characters. A kind of data set that can be
edited sets `Kind.board` to an `EditableGrid`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adadepth.errors import DataError, nearest

GridRows = list[list[str]]


@dataclass(frozen=True)
class EditableGrid:
    """Text form of an example for the interactive demo: the symbols of its cells, and the parser of an edited text.

    Attributes:
        symbols: Function from the settings to the symbols of a cell, in the order in which clicks cycle through them.
        read: Function from the settings, the rows of an edited grid and the original example to the new example.
        columns: Function from the settings and the number of cells to the number of columns. None means that the grid
            has one row.
    """

    symbols: Callable[[Any], Sequence[str]]
    read: Callable[[Any, GridRows, Mapping[str, Any]], dict[str, Any]]
    columns: Callable[[Any, int], int] | None = None

    def rows(self, dataset: Any, cells: Sequence[str]) -> GridRows:
        """Return a flat list of cells as the rows of a grid."""
        width = max(1, len(cells) if self.columns is None else self.columns(dataset, len(cells)))
        return [list(cells[start : start + width]) for start in range(0, len(cells), width)]

    def to_text(self, dataset: Any, cells: Sequence[str]) -> str:
        """Format the cells of a grid as text, one line per row."""
        separator = _choose_separator(self.symbols(dataset))
        return "\n".join(separator.join(row) for row in self.rows(dataset, cells))

    def parse(self, dataset: Any, text: str, before: Mapping[str, Any], cells: int) -> dict[str, Any]:
        """Parse a grid that a user edited as text into an example for the model.

        Args:
            dataset: Settings of the data set.
            text: Text in the form that `to_text` returns. Blank lines are ignored.
            before: Example before the edit.
            cells: Number of cells of the example.

        Raises:
            DataError: If a symbol is unknown, or if the grid has another shape or is not valid. The message is one
                line.
        """
        symbols = self.symbols(dataset)
        lines = [line for line in text.splitlines() if line.strip() or (line and " " in symbols)]
        rows = [list(line) if _choose_separator(symbols) == "" else line.split() for line in lines]
        widths = [len(row) for row in self.rows(dataset, [""] * cells)]
        for number, row in enumerate(rows, start=1):
            if unknown := next((symbol for symbol in row if symbol not in symbols), None):
                hint = nearest(unknown, symbols)
                raise DataError(
                    f"row {number}: {unknown!r:.40} is not a symbol{hint}; allowed are {_list_symbols(symbols)}"
                )
        if [len(row) for row in rows] != widths:
            shape = f"{len(widths)} rows of {widths[0]} cells" if len(widths) > 1 else f"one row of {widths[0]} cells"
            raise DataError(f"the board must have {shape}, but has {', '.join(str(len(row)) for row in rows) or 0}")
        return self.read(dataset, rows, before)


def count_square_columns(dataset: Any, cells: int) -> int:
    """Return the number of columns of a square grid with a given number of cells."""
    return math.isqrt(cells)


def number_symbols(rows: GridRows, symbols: Sequence[str]) -> np.ndarray:
    """Convert a grid of symbols to their indices in the list of symbols, (rows, columns) int8 or int16."""
    numbers = {symbol: number for number, symbol in enumerate(symbols)}
    return np.array(
        [[numbers[symbol] for symbol in row] for row in rows], dtype=np.int8 if len(numbers) < 128 else np.int16
    )


def _choose_separator(symbols: Sequence[str]) -> str:
    return "" if all(len(symbol) == 1 for symbol in symbols) else " "


def _list_symbols(symbols: Sequence[str], most: int = 12) -> str:
    text = ", ".join(repr(symbol) for symbol in symbols[:most])
    return f"{text}, ... and {len(symbols) - most} more" if len(symbols) > most else text
