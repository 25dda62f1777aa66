"""Examples drawn as grids: which are kept of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from adadepth.halting.trace import DepthTrace


Grid = dict[str, Any]


@dataclass(eq=False)
class GridSampler:
    """Keeps the first grids of an evaluated set.

    Attributes:
        decode: Token id to the symbol of a cell.
        labels: Names of the classes.
        kind: `cells`, where the inputs say row and column, or `chains`.
        count: How many are kept.
    """

    decode: Callable[[int], str]
    labels: Sequence[str]
    kind: str = "cells"
    count: int = 4
    _kept: dict[int, Grid] = field(default_factory=dict, init=False)

    def update(self, batch: Mapping[str, Tensor], trace: DepthTrace, predictions: Tensor) -> None:
        """Offer a batch, in any order.

        Args:
            batch: `input_ids`, `attention_mask`, `position_ids` (rows), `token_type_ids` (columns), `labels`,
                `difficulty`, (B, T) int64; `index` (B,).
            trace: Token-level depths.
            predictions: Classes, (B, T).
        """
        units = {"difficulty": batch["difficulty"], "updates": trace.updates.round().long(), "label": batch["labels"],
                 "predicted": predictions}  # fmt: skip
        for row, index in enumerate(batch["index"].tolist()):
            if len(self._kept) == self.count and index > max(self._kept):
                continue
            self._kept[index] = self._grid(batch, row, units)
            if len(self._kept) > self.count:
                del self._kept[max(self._kept)]

    def _grid(self, batch: Mapping[str, Tensor], row: int, units: Mapping[str, Tensor]) -> Grid:
        """One grid of a batch, cell by cell in its own rows and columns."""
        real = batch["attention_mask"][row].bool().cpu()
        down, across = self._places(batch, row, real)

        def laid_out(values: Tensor, name: Callable[[int], Any] = int) -> list[list[Any]]:
            grid: list[list[Any]] = [[None] * (max(across) + 1) for _ in range(max(down) + 1)]
            for y, x, value in zip(down, across, values[row].cpu()[real].tolist(), strict=True):
                grid[y][x] = None if value < 0 else name(value)
            return grid

        label = laid_out(units["label"], self.labels.__getitem__)
        predicted = laid_out(units["predicted"], self.labels.__getitem__)
        return {
            "index": int(batch["index"][row]),
            "kind": self.kind,
            "cells": laid_out(batch["input_ids"], self.decode),
            "difficulty": laid_out(units["difficulty"]),
            "updates": laid_out(units["updates"]),
            "label": label,
            "predicted": [
                [found if wanted is not None else None for found, wanted in zip(*rows, strict=True)]
                for rows in zip(predicted, label, strict=True)
            ],
        }

    def _places(self, batch: Mapping[str, Tensor], row: int, real: Tensor) -> tuple[list[int], list[int]]:
        """Row and column of every cell."""
        if self.kind == "chains":
            symbols = [self.decode(number) for number in batch["input_ids"][row].cpu()[real].tolist()]
            return chain_places(symbols, batch["difficulty"][row].cpu()[real].tolist())
        places = [batch[name][row].cpu()[real] for name in ("position_ids", "token_type_ids")]
        down, across = ((place - place.min()).tolist() for place in places)
        return down, across

    def grids(self) -> list[Grid]:
        """The grids kept, by number.

        Each has `index`, its number in the evaluated set, and lists of rows: `cells` (symbols), `difficulty`,
        `updates`, `label` and `predicted` (names); null where there is none.
        """
        return [self._kept[index] for index in sorted(self._kept)]


def chain_places(symbols: Sequence[str], hops: Sequence[int]) -> tuple[list[int], list[int]]:
    """Rows and columns of nodes: a column for every number of hops, and a node in the row of one that points to it.

    The longest chains lie along a row each; where chains meet, the shorter one has its own row up to there.

    Args:
        symbols: `>n`, which points to node n, or anything else for a root.
        hops: Pointers from each node to its root.
    """
    rows: dict[int, int] = {}
    taken: set[tuple[int, int]] = set()
    for start in sorted(range(len(hops)), key=lambda node: -hops[node]):
        if start in rows:
            continue
        row, node = next(row for row in count() if (row, hops[start]) not in taken), start
        while node not in rows and (row, hops[node]) not in taken:
            rows[node] = row
            taken.add((row, hops[node]))
            if hops[node]:
                node = int(symbols[node].removeprefix(">"))
    return [rows[node] for node in range(len(hops))], list(hops)


def measure_of(grid: Mapping[str, Any]) -> str:
    """What the left panel shows."""
    return "pointers to follow" if grid.get("kind") == "chains" else "steps from the start"


def facts_of(grid: Grid) -> str:
    """What is written above a grid: its size, how many cells are right, and its mean depth."""
    pairs = [
        (label, predicted)
        for labels, predictions in zip(grid["label"], grid["predicted"], strict=True)
        for label, predicted in zip(labels, predictions, strict=True)
        if label is not None
    ]
    right = sum(label == predicted for label, predicted in pairs)
    depths = [depth for row in grid["updates"] for depth in row if depth is not None]
    return f"example {grid['index']}: {right} of {len(pairs)} right, mean depth {sum(depths) / len(depths):.2f}"


def grid_picture(grid: Mapping[str, Any]) -> str:
    """Draw a grid twice, side by side: what each cell needs, and how many updates it received.

    Args:
        grid: Of grids.json. Walls show as `##`, the start as `S`, cells that cannot be reached as `.`.
    """

    def row_of(values: Sequence[Any], number: int) -> str:
        line = ""
        for cell, value in zip(grid["cells"][number], values, strict=True):
            if cell is None or cell in "#S":
                line += {None: "   ", "#": " ##", "S": "  S"}[cell]
                continue
            line += f"{'.' if value is None else value:>3}"
        return line

    far = [row_of(values, number) for number, values in enumerate(grid["difficulty"])]
    deep = [row_of(values, number) for number, values in enumerate(grid["updates"])]
    width = max(*map(len, far), len(measure_of(grid))) + 4
    heading = f"{measure_of(grid):<{width}}updates"
    return "\n".join([heading, *(f"{left:<{width}}{right}" for left, right in zip(far, deep, strict=True))])


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
