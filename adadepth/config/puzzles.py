"""Puzzles, drawn or of a table: many cells to be filled, all of which have to be right."""

from dataclasses import dataclass
from enum import StrEnum

from adadepth.config.generated import GeneratedConfig
from adadepth.config.tables import TableConfig
from adadepth.declaration import BELOW_ONE, Allowed, at_least, setting

Symmetries = StrEnum("Symmetries", ["none", "sudoku", "square"])
CellCount = StrEnum("CellCount", ["givens", "path_length"])
_SYMBOLS = Allowed(
    lambda text: text.isascii() and text.isprintable() and len(text) > 1 and len(set(text)) == len(text),
    "two or more different characters of ASCII",
)


@dataclass
class DrawnPuzzleConfig(GeneratedConfig):
    """Generated puzzles: a grid is given, its solution is the answer, and all cells have to be right."""

    metrics: list[str] = setting(["exact_accuracy", "cell_accuracy"], "eval/score is their mean")
    symmetries: bool = setting(True, "training sees each puzzle under a symmetry drawn anew in every epoch")


@dataclass
class SudokuConfig(DrawnPuzzleConfig):
    """Sudoku with one solution each. A puzzle's difficulty is how many rounds of simple conclusions fill it."""

    size: int = setting(6, "digits, and cells along each side", Allowed(lambda size: size in (4, 6, 9), "4, 6 or 9"))
    blanks: int | None = setting(None, "no more of a puzzle; None: as many as leave one solution", at_least(1))


@dataclass
class MazePathConfig(DrawnPuzzleConfig):
    """The shortest way from start to goal, where there is but one. A maze's difficulty is its length."""

    size: int = setting(10, "cells along each side", at_least(3))
    walls: float = setting(0.4, "share of cells that are walls", BELOW_ONE)


@dataclass
class PuzzleTableConfig(TableConfig):
    """Puzzles of a table, written with a character a cell: Sudoku-Extreme, Maze-Hard."""

    question_column: str = setting("question", "texts")
    answer_column: str = setting("answer", "texts of the same length")
    difficulty_column: str | None = setting(
        None, "whole numbers from 0 on; None: cells whose answer is not what is given"
    )
    symbols: str = setting(".123456789", "of a cell, in puzzle and answer; the first one is token 1", _SYMBOLS)
    counted: CellCount = setting(
        CellCount.givens, "what reports tell steps by, with columns of whole numbers; path_length: of a maze's answer"
    )
    symmetries: Symmetries = setting(
        Symmetries.none, "training sees each puzzle under one drawn anew in every epoch: of Sudoku, or of a square"
    )
    metrics: list[str] = setting(["exact_accuracy", "cell_accuracy"], "eval/score is their mean")
