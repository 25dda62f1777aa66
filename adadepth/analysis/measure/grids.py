"""Example grids of an evaluation, such as mazes: the depth of every cell beside its true distance.

Chains of pointers are grids too: a column for every number of pointers to follow, a chain along a row.

A panel is described once, as cells with a text and colours; the backends of figures draw it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from adadepth.analysis.render.colors import depth_color, ramp, text_on
from adadepth.analysis.render.figure import Cell

if TYPE_CHECKING:
    from torch import Tensor

    from adadepth.halting.trace import DepthTrace

Grid = dict[str, Any]
_PLAIN, _ASIDE, _WHITE = "#4a525b", "#f0f2f5", "#ffffff"


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


def distance_panel(grid: Grid) -> list[Cell]:
    """True distances, the further the darker; cells without one are light, their symbol says what they are."""
    furthest = max((value for row in grid["difficulty"] for value in row if value is not None), default=1)

    def draw(row: int, column: int) -> Cell:
        symbol, distance = grid["cells"][row][column], grid["difficulty"][row][column]
        if distance is not None:
            fill = ramp(max(distance - 1, 0) / max(furthest - 1, 1))
            return Cell(row, column, str(distance), fill, text_on(fill))
        if grid["label"][row][column] is not None:
            return Cell(row, column, "–", _ASIDE, _PLAIN)
        fill = _PLAIN if symbol == "#" else _WHITE
        return Cell(row, column, "" if symbol == "#" else symbol, fill, text_on(fill))

    return _panel(grid, draw)


def depth_panel(grid: Grid, max_depth: int) -> list[Cell]:
    """Updates of every cell, the deeper the darker; walls keep their colour; wrong predictions are marked."""

    def draw(row: int, column: int) -> Cell:
        depth, label = grid["updates"][row][column], grid["label"][row][column]
        fill = _PLAIN if grid["cells"][row][column] == "#" else depth_color(depth, max_depth)
        return Cell(row, column, str(depth), fill, text_on(fill), label != grid["predicted"][row][column])

    return _panel(grid, draw)


def _panel(grid: Grid, draw: Callable[[int, int], Cell]) -> list[Cell]:
    return [
        draw(row, column)
        for row, symbols in enumerate(grid["cells"])
        for column, symbol in enumerate(symbols)
        if symbol is not None
    ]


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
