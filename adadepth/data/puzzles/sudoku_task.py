"""Generated Sudoku puzzles as the data of a run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from adadepth.data.generated.blocks import evaluation_size
from adadepth.data.labelled.contract import LabelledData
from adadepth.data.puzzles.examples import PuzzleExamples, puzzle_data
from adadepth.data.puzzles.sudoku import SHAPES, Shape, draw_grids, invariants, minimal_puzzles, rounds_needed
from adadepth.data.puzzles.symmetries import under_sudoku_symmetry
from adadepth.data.randomness import EVALUATION_SEED, FIXED_EPOCH, Purpose, random_generator
from adadepth.errors import DataError

if TYPE_CHECKING:
    from adadepth.config.puzzles import SudokuConfig

BLANK = "."


def load_sudoku(dataset: SudokuConfig, seed: int) -> LabelledData:
    """Sudoku puzzles with one solution each; no evaluation puzzle is a training one under any symmetry.

    The evaluation set depends on neither the seed nor the number of training examples.

    Raises:
        DataError: No training puzzle is left.
    """
    shape = SHAPES[dataset.size]
    draw = partial(draw_sudoku, shape, blanks=dataset.blanks)
    held_out = draw(evaluation_size(dataset), EVALUATION_SEED, evaluation=True)
    puzzles, solutions = draw(dataset.train_examples, seed, evaluation=False)
    kept = ~np.isin(invariants(puzzles, shape), invariants(held_out[0], shape))
    if not kept.any():
        raise DataError(
            f"dataset.train_examples={dataset.train_examples}: all are one of the {len(held_out[0])} evaluation "
            f"puzzles under a symmetry; of {dataset.size} x {dataset.size} cells there are few others"
        )
    train = _examples(puzzles[kept], solutions[kept], shape)
    if dataset.symmetries:
        train.symmetry, train.seed = partial(under_sudoku_symmetry, shape), seed
    symbols = (BLANK, *map(str, range(1, shape.size + 1)))
    facts = {"size": shape.size, "givens": round(float((puzzles > 0).sum(axis=1).mean()), 2)}
    return puzzle_data(dataset, train, {"validation": _examples(*held_out, shape)}, symbols, facts)


def draw_sudoku(
    shape: Shape, rows: int, seed: int, *, blanks: int | None, evaluation: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Puzzles and their solutions, (rows, n^2) int8 each."""
    generator = random_generator(seed, Purpose.PUZZLES, FIXED_EPOCH, int(evaluation))
    grids = draw_grids(rows, shape, generator)
    return minimal_puzzles(grids, shape, generator, shape.cells if blanks is None else blanks), grids


def _examples(puzzles: np.ndarray, solutions: np.ndarray, shape: Shape) -> PuzzleExamples:
    """A blank is token 1, the digit d is d + 1."""
    rounds = rounds_needed(puzzles, solutions, shape)
    attributes = {"rounds of conclusions": rounds, "givens": (puzzles > 0).sum(axis=1)}
    return PuzzleExamples((puzzles + 1).astype(np.int8), (solutions + 1).astype(np.int8), rounds, attributes)
