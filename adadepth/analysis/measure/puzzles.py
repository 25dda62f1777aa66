"""Example puzzles of an evaluation: what was given, and the answer after every step up to the one that counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adadepth.analysis.render.colors import text_on
from adadepth.analysis.render.figure import Cell

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from adadepth.analysis.measure.grids import Grid

PUZZLE = "puzzle"  # the kind of these grids
NO_SYMBOL = "?"  # an answer may be padding, which stands for none
MOST_STEPS = 6  # drawn of one puzzle; between the first ones and the last some may be left out
_GIVEN, _NEW, _SAME, _WRONG = "#4a525b", "#cfe3f5", "#f0f2f5", "#f6d5cf"


@dataclass(eq=False)
class PuzzleSampler:
    """Keeps the first puzzles of an evaluated set.

    Attributes:
        symbols: Of the tokens.
        attributes: What is known of all puzzles of the set, name to whole numbers (puzzles,).
        count: How many are kept.
    """

    symbols: Sequence[str]
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    count: int = 4
    _kept: dict[int, Grid] = field(default_factory=dict, init=False)

    def update(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Offer a batch, in any order.

        Args:
            batch: `input_ids` and `labels` (B, L), `index` (B,).
            outputs: `step_logits` (B, N, L, V), `exit_steps` (B,).
        """
        for row, index in enumerate(batch["index"].tolist()):
            if index >= self.count:
                continue
            exit_step = int(outputs.exit_steps[row])
            answers = outputs.step_logits[row, :exit_step].argmax(dim=-1)
            self._kept[index] = {
                "index": index,
                "kind": PUZZLE,
                "attributes": {name: int(values[index]) for name, values in self.attributes.items()},
                "cells": self._laid_out(batch["input_ids"][row]),
                "label": self._laid_out(batch["labels"][row]),
                "answers": [self._laid_out(answer) for answer in answers],
            }

    def _laid_out(self, tokens: Tensor) -> list[list[str | None]]:
        """Symbols row by row of a square, None where no answer is asked for."""
        names = [None if token < 0 else self.symbols[token] for token in tokens.tolist()]
        size = math.isqrt(len(names))
        return [names[start : start + size] for start in range(0, len(names), size)]

    def grids(self) -> list[Grid]:
        """The puzzles kept, by number: `index`, `attributes`, and rows of symbols in `cells`, `label` and `answers`."""
        return [self._kept[index] for index in sorted(self._kept)]


def shown_steps(steps: int) -> list[int]:
    """Which answers of so many are shown: the first ones, and the last."""
    return [*range(1, min(steps, MOST_STEPS)), steps]


def answer_boards(grid: Grid) -> list[tuple[str, list[Cell]]]:
    """The puzzle, and the answers: what is new in one is blue, what is wrong is marked."""
    before = grid["cells"]
    boards = [(PUZZLE, _board(grid, before, before))]
    for step in shown_steps(len(grid["answers"])):
        answer = grid["answers"][step - 1]
        boards.append((f"step {step}", _board(grid, answer, before)))
        before = answer
    return boards


def _board(grid: Grid, answer: list[list[str]], before: list[list[str]]) -> list[Cell]:
    found = []
    for row, symbols in enumerate(answer):
        for column, symbol in enumerate(symbols):
            wanted, given = grid["label"][row][column], grid["cells"][row][column]
            is_given = given == wanted
            is_wrong = answer is not grid["cells"] and wanted is not None and symbol != wanted
            fill = _GIVEN if is_given else _WRONG if is_wrong else _NEW if symbol != before[row][column] else _SAME
            found.append(Cell(row, column, symbol, fill, text_on(fill), is_wrong))
    return found


def box_of(label: list[list[str]]) -> tuple[int, int] | None:
    """Rows and columns of the boxes of a solved Sudoku, which hold every symbol once; None of another puzzle."""
    size = len(label)
    symbols = {symbol for row in label for symbol in row}
    if len(symbols) != size or any(len(set(line)) != size for line in (*label, *zip(*label, strict=True))):
        return None
    shapes = [(rows, size // rows) for rows in range(2, size) if size % rows == 0]
    return next((shape for shape in sorted(shapes, key=_flatness) if _holds_all(label, *shape)), None)


def _flatness(shape: tuple[int, int]) -> tuple[int, int]:
    """Square boxes before long ones, and lying before standing ones."""
    return abs(shape[0] - shape[1]), shape[0]


def _holds_all(label: list[list[str]], rows: int, columns: int) -> bool:
    size = len(label)
    boxes = (
        {label[top + row][left + column] for row in range(rows) for column in range(columns)}
        for top in range(0, size, rows)
        for left in range(0, size, columns)
    )
    return all(len(box) == size for box in boxes)


def puzzle_facts(grid: Grid) -> str:
    """What is written above a puzzle."""
    last = grid["answers"][-1]
    pairs = [pair for rows in zip(last, grid["label"], strict=True) for pair in zip(*rows, strict=True)]
    wrong = sum(wanted is not None and found != wanted for found, wanted in pairs)
    end = "solved" if not wrong else f"{wrong} cells wrong"
    steps = len(grid["answers"])
    known = "".join(f", {name} {value}" for name, value in grid.get("attributes", {}).items())
    return f"puzzle {grid['index']}{known}: {end} after {steps} step{'s' * (steps > 1)}"


def puzzle_picture(grid: Mapping[str, Any]) -> str:
    """The puzzle and its answers side by side as text; `!` stands before a wrong cell."""
    steps = shown_steps(len(grid["answers"]))
    boards = [grid["cells"], *(grid["answers"][step - 1] for step in steps)]
    lines = []
    for number, wanted in enumerate(grid["label"]):
        parts = []
        for board in boards:
            marks = [
                f"{'!' if board is not grid['cells'] and right is not None and symbol != right else ' '}{symbol}"
                for symbol, right in zip(board[number], wanted, strict=True)
            ]
            parts.append("".join(marks))
        lines.append("   ".join(parts))
    width = 2 * len(grid["label"])
    heading = "   ".join(name.rjust(width) for name in (PUZZLE, *(f"step {step}" for step in steps)))
    return "\n".join([heading, *lines])
