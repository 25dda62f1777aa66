"""Editable grids: how an example is written cell by cell, and read back after an edit.

A board is rows of symbols, a token each, in the order of the tokens. As text it is a row a line, with spaces between
symbols where any of them has several characters. A kind of data that can be edited names an `EditableGrid`
in `Kind.board`.
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
    """The symbols, the reader and the width of an editable example.

    Attributes:
        symbols: Function from the settings to the symbols of a cell, in the order in which a click goes through them.
        read: Function from the settings, the rows of an edited board and the original example to the new example.
        columns: Function from the settings and the number of cells to the width of a row; None: one row.
    """

    symbols: Callable[[Any], Sequence[str]]
    read: Callable[[Any, GridRows, Mapping[str, Any]], dict[str, Any]]
    columns: Callable[[Any, int], int] | None = None

    def rows(self, dataset: Any, cells: Sequence[str]) -> GridRows:
        """Return the cells row by row."""
        width = max(1, len(cells) if self.columns is None else self.columns(dataset, len(cells)))
        return [list(cells[start : start + width]) for start in range(0, len(cells), width)]

    def written(self, dataset: Any, cells: Sequence[str]) -> str:
        """Return the cells as text."""
        separator = _choose_separator(self.symbols(dataset))
        return "\n".join(separator.join(row) for row in self.rows(dataset, cells))

    def edited(self, dataset: Any, text: str, before: Mapping[str, Any], cells: int) -> dict[str, Any]:
        """Return the example that a text stands for.

        Args:
            dataset: The settings.
            text: EditableGrid as `written` returns it; blank lines are ignored.
            before: Example that was edited.
            cells: Number of its cells.

        Raises:
            DataError: A symbol is unknown, or the board has another shape, or makes no sense; one line.
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
    """Return the number of columns of a square board."""
    return math.isqrt(cells)


def number_symbols(rows: GridRows, symbols: Sequence[str]) -> np.ndarray:
    """Return the number of each symbol, (rows, columns) int8, or int16 for 128 symbols and more."""
    numbers = {symbol: number for number, symbol in enumerate(symbols)}
    return np.array(
        [[numbers[symbol] for symbol in row] for row in rows], dtype=np.int8 if len(numbers) < 128 else np.int16
    )


def _choose_separator(symbols: Sequence[str]) -> str:
    return "" if all(len(symbol) == 1 for symbol in symbols) else " "


def _list_symbols(symbols: Sequence[str], most: int = 12) -> str:
    text = ", ".join(repr(symbol) for symbol in symbols[:most])
    return f"{text}, ... and {len(symbols) - most} more" if len(symbols) > most else text
