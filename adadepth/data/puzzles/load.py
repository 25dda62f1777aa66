"""Puzzles of a run: generated ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from adadepth.data.generated.blocks import evaluation_size
from adadepth.data.labelled.contract import LabelledData
from adadepth.data.puzzles.examples import PADDING, PuzzleExamples, collate_puzzles, puzzle_tokenizer
from adadepth.data.puzzles.sudoku import (
    SHAPES,
    Shape,
    draw_grids,
    draw_symmetry,
    invariants,
    minimal_puzzles,
    rounds_needed,
)
from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, random_generator

if TYPE_CHECKING:
    from adadepth.config import SudokuConfig

BLANK = "."


def load_sudoku(dataset: SudokuConfig, seed: int) -> LabelledData:
    """Sudoku puzzles with one solution each; no evaluation puzzle is a training one under any symmetry.

    The evaluation set depends on neither the seed nor the number of training examples.
    """
    shape = SHAPES[dataset.size]
    draw = partial(draw_sudoku, shape, blanks=dataset.blanks)
    held_out = draw(evaluation_size(dataset), EVALUATION_SEED, evaluation=True)
    puzzles, solutions = unlike(*draw(dataset.train_examples, seed, evaluation=False), held_out[0], shape)
    symmetry = partial(under_symmetry, shape) if dataset.symmetries else None
    difficulty = rounds_needed(puzzles, solutions, shape)
    train = PuzzleExamples(as_tokens(puzzles), as_tokens(solutions), difficulty, symmetry, seed)
    evaluation = PuzzleExamples(*map(as_tokens, held_out), rounds_needed(*held_out, shape))
    symbols = (BLANK, *map(str, range(1, shape.size + 1)))
    givens = (puzzles > 0).sum(axis=1).mean()
    summary = {
        "name": dataset.name, "source": "drawn", "size": shape.size, "givens": round(float(givens), 2),
        "train": {"examples": len(train)}, "evaluation": {"validation": {"examples": len(evaluation)}},
    }  # fmt: skip
    return LabelledData(
        train, {"validation": evaluation}, {}, puzzle_tokenizer(symbols), collate_puzzles, summary, "puzzle",
        (PADDING, *symbols), tuple(dataset.metrics), has_difficulty=True, has_special_tokens=False,
        model_fields={"cells": shape.cells},
    )  # fmt: skip


def draw_sudoku(
    shape: Shape, rows: int, seed: int, *, blanks: int | None, evaluation: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Puzzles and their solutions, (rows, n^2) int8 each."""
    generator = random_generator(seed, Purpose.PUZZLES, FIXED_EPOCH, int(evaluation))
    grids = draw_grids(rows, shape, generator)
    return minimal_puzzles(grids, shape, generator, shape.cells if blanks is None else blanks), grids


def unlike(
    puzzles: np.ndarray, solutions: np.ndarray, held_out: np.ndarray, shape: Shape
) -> tuple[np.ndarray, np.ndarray]:
    """Those puzzles, with their solutions, that no symmetry can make one of the held-out ones."""
    kept = ~np.isin(invariants(puzzles, shape), invariants(held_out, shape))
    return puzzles[kept], solutions[kept]


def under_symmetry(
    shape: Shape, puzzle: np.ndarray, solution: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A puzzle and its solution, as tokens (n^2,), under a random symmetry."""
    cells, digits = draw_symmetry(shape, generator)
    tokens = np.concatenate([[0], digits + 1])
    return tokens[puzzle[cells]], tokens[solution[cells]]


def as_tokens(grids: np.ndarray) -> np.ndarray:
    """Blanks are token 1, the digit d is d + 1; int8."""
    return (grids + 1).astype(np.int8)
