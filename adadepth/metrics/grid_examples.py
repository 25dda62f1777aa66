"""Example grids and puzzles sampled during an evaluation, and their drawings as text."""

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
    """Sampler that stores the first example grids (mazes, sums or graphs) of an evaluated data set.

    Attributes:
        decode: Function from a token id to the symbol of a cell.
        labels: Names of the classes.
        kind: `cells` if the inputs have row and column, or `chains`.
        count: Number of grids.
    """

    decode: Callable[[int], str]
    labels: Sequence[str]
    kind: str = "cells"
    count: int = 4
    _grids: dict[int, Grid] = field(default_factory=dict, init=False)

    def update(self, batch: Mapping[str, Tensor], trace: DepthTrace, predictions: Tensor) -> None:
        """Add the grids of a batch that are among the first of the set. Batches may come in any order.

        Args:
            batch: `input_ids`, `attention_mask`, `position_ids` (rows), `token_type_ids` (columns), `labels`,
                `difficulty`, (B, T) int64; `index` (B,).
            trace: Token-level depths.
            predictions: Predicted classes, (B, T).
        """
        units = {
            "difficulty": batch["difficulty"],
            "updates": trace.updates.round().long(),
            "label": batch["labels"],
            "predicted": predictions,
        }
        for row, index in enumerate(batch["index"].tolist()):
            if len(self._grids) == self.count and index > max(self._grids):
                continue
            self._grids[index] = self._build_grid(batch, row, units)
            if len(self._grids) > self.count:
                del self._grids[max(self._grids)]

    def _build_grid(self, batch: Mapping[str, Tensor], row: int, units: Mapping[str, Tensor]) -> Grid:
        """Return the example grid of one example in a batch, with cell values by row and column."""
        real = batch["attention_mask"][row].bool().cpu()
        down, across = self._locate_cells(batch, row, real)

        def arrange(values: Tensor, name: Callable[[int], Any] = int) -> list[list[Any]]:
            grid: list[list[Any]] = [[None] * (max(across) + 1) for _ in range(max(down) + 1)]
            for y, x, value in zip(down, across, values[row].cpu()[real].tolist(), strict=True):
                grid[y][x] = None if value < 0 else name(value)
            return grid

        label = arrange(units["label"], self.labels.__getitem__)
        predicted = arrange(units["predicted"], self.labels.__getitem__)
        return {
            "index": int(batch["index"][row]),
            "kind": self.kind,
            "cells": arrange(batch["input_ids"], self.decode),
            "difficulty": arrange(units["difficulty"]),
            "updates": arrange(units["updates"]),
            "label": label,
            "predicted": [
                [None if target is None else prediction for prediction, target in zip(*rows, strict=True)]
                for rows in zip(predicted, label, strict=True)
            ],
        }

    def _locate_cells(self, batch: Mapping[str, Tensor], row: int, real: Tensor) -> tuple[list[int], list[int]]:
        """Return the row and the column of every cell of a grid."""
        if self.kind == "chains":
            symbols = [self.decode(number) for number in batch["input_ids"][row].cpu()[real].tolist()]
            return locate_chain_nodes(symbols, batch["difficulty"][row].cpu()[real].tolist())
        axes = [batch[name][row].cpu()[real] for name in ("position_ids", "token_type_ids")]
        down, across = ((axis - axis.min()).tolist() for axis in axes)
        return down, across

    def grids(self) -> list[Grid]:
        """Return the sampled grids by index.

        Each grid has `index`, its number in the evaluated set, and lists of rows: `cells` (symbols), `difficulty`,
        `updates`, `label` and `predicted` (names). An entry is null if its cell has no value.
        """
        return [self._grids[index] for index in sorted(self._grids)]


def locate_chain_nodes(symbols: Sequence[str], hops: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the grid position of each graph node: columns by number of hops, rows by chain.

    Each of the longest chains has a full row. A shorter chain has a row up to the node where it joins a longer one.

    Args:
        symbols: Symbol of every node: `>n` if it points to node n, or anything else for a root.
        hops: Number of pointers from each node to its root.
    """
    rows: dict[int, int] = {}
    occupied: set[tuple[int, int]] = set()
    for start in sorted(range(len(hops)), key=lambda node: -hops[node]):
        if start in rows:
            continue
        row, node = next(row for row in count() if (row, hops[start]) not in occupied), start
        while node not in rows and (row, hops[node]) not in occupied:
            rows[node] = row
            occupied.add((row, hops[node]))
            if hops[node]:
                node = int(symbols[node].removeprefix(">"))
    return [rows[node] for node in range(len(hops))], list(hops)


def format_difficulty_title(grid: Mapping[str, Any]) -> str:
    """Return the title of a grid's left panel, which shows difficulty."""
    return "pointers to follow" if grid.get("kind") == "chains" else "steps from the start"


def format_grid_caption(grid: Grid) -> str:
    """Format the caption of a grid: its index, the number of right cells, and the mean depth.

    If only some cells have a label, the caption names them and counts the cells of the mean depth.
    """
    pairs = [
        (label, predicted)
        for labels, predictions in zip(grid["label"], grid["predicted"], strict=True)
        for label, predicted in zip(labels, predictions, strict=True)
        if label is not None
    ]
    right = sum(label == predicted for label, predicted in pairs)
    depths = [depth for row in grid["updates"] for depth in row if depth is not None]
    cells, mean = "nodes" if grid.get("kind") == "chains" else "cells", f"mean depth {sum(depths) / len(depths):.2f}"
    if len(pairs) == len(depths):
        return f"sequence {grid['index']}: {right} of {len(pairs)} {cells} right, {mean}"
    return f"sequence {grid['index']}: {right} of {len(pairs)} labelled {cells} right, {mean} over {len(depths)}"


def draw_grid_text(grid: Mapping[str, Any]) -> str:
    """Draw the difficulty and the number of updates of each cell of a grid, side by side as text.

    Args:
        grid: Entry of grids.json. A wall is drawn as `##`, the start as `S`, and a cell that cannot be reached as `.`.
    """

    def format_row(values: Sequence[Any], number: int) -> str:
        line = ""
        for cell, value in zip(grid["cells"][number], values, strict=True):
            if cell is None or cell in "#S":
                line += {None: "   ", "#": " ##", "S": "  S"}[cell]
                continue
            line += f"{'.' if value is None else value:>3}"
        return line

    difficulties = [format_row(values, number) for number, values in enumerate(grid["difficulty"])]
    updates = [format_row(values, number) for number, values in enumerate(grid["updates"])]
    width = max(*map(len, difficulties), len(format_difficulty_title(grid))) + 4
    heading = f"{format_difficulty_title(grid):<{width}}updates"
    return "\n".join(
        [heading, *(f"{first:<{width}}{second}" for first, second in zip(difficulties, updates, strict=True))]
    )


PUZZLE = "puzzle"  # the kind of these grids
NO_SYMBOL = "?"  # for an answer that is padding
MOST_STEPS = 6  # answers of one puzzle in a drawing: the first ones and the last
_GIVEN, _NEW, _SAME, _WRONG = "#4a525b", "#cfe3f5", "#f0f2f5", "#f6d5cf"


@dataclass(eq=False)
class PuzzleSampler:
    """Sampler that stores the first puzzles of an evaluated data set.

    Attributes:
        symbols: Symbols of the tokens.
        attributes: Attributes of all puzzles of the set, by name, each an array of whole numbers, (puzzles,).
        count: Number of puzzles.
    """

    symbols: Sequence[str]
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    count: int = 4
    _puzzles: dict[int, Grid] = field(default_factory=dict, init=False)

    def update(self, batch: Mapping[str, Tensor], outputs: Any) -> None:
        """Add the puzzles of a batch that are among the first of the set. Batches may come in any order.

        Args:
            batch: `input_ids` and `labels` (B, L), `index` (B,).
            outputs: `step_logits` (B, N, L, V) and `exit_steps` (B,).
        """
        for row, index in enumerate(batch["index"].tolist()):
            if index >= self.count:
                continue
            exit_step = int(outputs.exit_steps[row])
            answers = outputs.step_logits[row, :exit_step].argmax(dim=-1)
            self._puzzles[index] = {
                "index": index,
                "kind": PUZZLE,
                "attributes": {name: int(values[index]) for name, values in self.attributes.items()},
                "cells": self._arrange(batch["input_ids"][row]),
                "label": self._arrange(batch["labels"][row]),
                "answers": [self._arrange(answer) for answer in answers],
            }

    def _arrange(self, tokens: Tensor) -> list[list[str | None]]:
        """Return the symbols of a square puzzle by rows, with None at cells without an answer."""
        names = [None if token < 0 else self.symbols[token] for token in tokens.tolist()]
        size = math.isqrt(len(names))
        return [names[start : start + size] for start in range(0, len(names), size)]

    def grids(self) -> list[Grid]:
        """Return the sampled puzzles in the order of their numbers.

        Each puzzle has `index`, `attributes`, and rows of symbols in `cells`, `label` and `answers`.
        """
        return [self._puzzles[index] for index in sorted(self._puzzles)]


def select_shown_steps(steps: int) -> list[int]:
    """Return the steps whose answers a drawing of a puzzle shows: the first ones and the last."""
    return [*range(1, min(steps, MOST_STEPS)), steps]


def find_box_shape(label: list[list[str]]) -> tuple[int, int] | None:
    """Return rows and columns of the boxes of a solved Sudoku, or None for other puzzles.

    Every box holds every symbol exactly once.
    """
    size = len(label)
    symbols = {symbol for row in label for symbol in row}
    if len(symbols) != size or any(len(set(line)) != size for line in (*label, *zip(*label, strict=True))):
        return None
    shapes = [(rows, size // rows) for rows in range(2, size) if size % rows == 0]
    return next((shape for shape in sorted(shapes, key=_rank_shape) if _has_all_symbols(label, *shape)), None)


def _rank_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """Return a sort key for shapes of Sudoku boxes: square before long, and wide before tall."""
    return abs(shape[0] - shape[1]), shape[0]


def _has_all_symbols(label: list[list[str]], rows: int, columns: int) -> bool:
    size = len(label)
    boxes = (
        {label[top + row][start + column] for row in range(rows) for column in range(columns)}
        for top in range(0, size, rows)
        for start in range(0, size, columns)
    )
    return all(len(box) == size for box in boxes)


def format_puzzle_caption(grid: Grid) -> str:
    """Format the caption of a puzzle: its index, attributes, number of wrong cells and number of steps."""
    last = grid["answers"][-1]
    pairs = [pair for rows in zip(last, grid["label"], strict=True) for pair in zip(*rows, strict=True)]
    wrong = sum(target is not None and answer != target for answer, target in pairs)
    end = "solved" if not wrong else f"{wrong} of {len(pairs)} cells wrong"
    steps = len(grid["answers"])
    attributes = "".join(f", {name} {value}" for name, value in grid.get("attributes", {}).items())
    return f"puzzle {grid['index']}{attributes}: {end} after {steps} step{'s' * (steps > 1)}"


def draw_puzzle_text(grid: Mapping[str, Any]) -> str:
    """Draw a puzzle and its answers as text, side by side. `!` precedes a wrong cell."""
    steps = select_shown_steps(len(grid["answers"]))
    boards = [grid["cells"], *(grid["answers"][step - 1] for step in steps)]
    lines = []
    for number, targets in enumerate(grid["label"]):
        parts = []
        for board in boards:
            marks = [
                f"{'!' if board is not grid['cells'] and target is not None and symbol != target else ' '}{symbol}"
                for symbol, target in zip(board[number], targets, strict=True)
            ]
            parts.append("".join(marks))
        lines.append("   ".join(parts))
    width = 2 * len(grid["label"])
    heading = "   ".join(name.rjust(width) for name in (PUZZLE, *(f"step {step}" for step in steps)))
    return "\n".join([heading, *lines])


def draw_example_text(grid: Mapping[str, Any]) -> str:
    """Draw an entry of grids.json as text: a puzzle with its answers, or another grid with depths."""
    return draw_puzzle_text(grid) if grid["kind"] == PUZZLE else draw_grid_text(grid)
