"""Inputs as boards: how the examples of a kind of data are written cell by cell, and read back when somebody edits one.

A board is rows of symbols, a token each, in the order of the tokens. As text it is a row a line, with spaces between
symbols where any of them has several characters. A kind of data that can be edited names a `Board` in `Kind.board`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adadepth.errors import DataError, nearest

BoardRows = list[list[str]]


@dataclass(frozen=True)
class Board:
    """How an example of a kind of data is edited.

    Attributes:
        symbols: From the settings to what a cell may hold, in the order in which a click goes through it.
        read: From the settings, the rows of an edited board, and the example that was edited, to an example with what
            is right of it and how hard it is: what the data set's `example` has. Raises a `DataError` of one line.
        columns: From the settings and the number of cells to the cells of a row; None: all cells lie in one row.
    """

    symbols: Callable[[Any], Sequence[str]]
    read: Callable[[Any, BoardRows, Mapping[str, Any]], dict[str, Any]]
    columns: Callable[[Any, int], int] | None = None

    def rows(self, dataset: Any, cells: Sequence[str]) -> BoardRows:
        """Cells in their rows."""
        width = max(1, len(cells) if self.columns is None else self.columns(dataset, len(cells)))
        return [list(cells[start : start + width]) for start in range(0, len(cells), width)]

    def written(self, dataset: Any, cells: Sequence[str]) -> str:
        """Cells as text."""
        between = _between(self.symbols(dataset))
        return "\n".join(between.join(row) for row in self.rows(dataset, cells))

    def edited(self, dataset: Any, text: str, before: Mapping[str, Any], cells: int) -> dict[str, Any]:
        """The example that a text stands for.

        Args:
            dataset: The settings.
            text: See `written`; blank lines are none.
            before: The example that was edited.
            cells: How many it has.

        Raises:
            DataError: A symbol is unknown, or the board has another shape, or makes no sense; one line.
        """
        symbols = self.symbols(dataset)
        lines = [line for line in text.splitlines() if line.strip() or (line and " " in symbols)]
        found = [list(line) if _between(symbols) == "" else line.split() for line in lines]
        wanted = [len(row) for row in self.rows(dataset, [""] * cells)]
        for number, row in enumerate(found, start=1):
            if unknown := next((symbol for symbol in row if symbol not in symbols), None):
                hint = nearest(unknown, symbols)
                raise DataError(f"row {number}: {unknown!r:.40} is no symbol{hint}; there are {_listed(symbols)}")
        if [len(row) for row in found] != wanted:
            shape = f"{len(wanted)} rows of {wanted[0]} cells" if len(wanted) > 1 else f"one row of {wanted[0]} cells"
            raise DataError(f"the board must have {shape}, and has {', '.join(str(len(row)) for row in found) or 0}")
        return self.read(dataset, found, before)


def square_columns(dataset: Any, cells: int) -> int:
    """The columns of a square board."""
    return math.isqrt(cells)


def symbol_numbers(rows: BoardRows, symbols: Sequence[str]) -> np.ndarray:
    """The numbers of the symbols, (rows, columns) int8 or int16 by how many there are."""
    known = {symbol: number for number, symbol in enumerate(symbols)}
    return np.array(
        [[known[symbol] for symbol in row] for row in rows], dtype=np.int8 if len(known) < 128 else np.int16
    )


def _between(symbols: Sequence[str]) -> str:
    return "" if all(len(symbol) == 1 for symbol in symbols) else " "


def _listed(symbols: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(repr(symbol) for symbol in symbols[:most])
    return f"{shown}, ... and {len(symbols) - most} more" if len(symbols) > most else shown
