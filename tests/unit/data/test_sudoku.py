"""Sudoku: solutions by brute force, symmetries, and no evaluation puzzle that is equivalent to a training puzzle."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from adadepth.config.data import SudokuConfig
from adadepth.data.puzzles.generated import load_sudoku
from adadepth.data.puzzles.sudoku import (
    SHAPES,
    Shape,
    compute_sudoku_keys,
    count_rounds,
    draw_grids,
    draw_symmetry,
    invariants,
    reduce_to_minimal,
    solutions,
    to_candidates,
)
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick


def draw_puzzles(size: int, rows: int, seed: int = 0) -> tuple[Shape, np.ndarray, np.ndarray]:
    shape, generator = SHAPES[size], np.random.default_rng(seed)
    grids = draw_grids(rows, shape, generator)
    return shape, grids, reduce_to_minimal(grids, shape, generator, shape.cells)


def find_all_solutions(puzzle: np.ndarray, shape: Shape) -> list[tuple[int, ...]]:
    """Return every solution, cell after cell."""
    solutions: list[tuple[int, ...]] = []

    def fill(cells: list[int], number: int) -> None:
        if number == shape.cells:
            solutions.append(tuple(cells))
            return
        for digit in [puzzle[number]] if puzzle[number] else range(1, shape.size + 1):
            if all(cells[peer] != digit for peer in shape.peers[number] if peer < number or puzzle[peer]):
                fill([*cells[:number], int(digit), *cells[number + 1 :]], number + 1)

    fill(puzzle.tolist(), 0)
    return solutions


@pytest.mark.parametrize("size", SHAPES)
def test_grids_are_filled_by_the_rules(size: int) -> None:
    shape = SHAPES[size]
    grids = draw_grids(20, shape, np.random.default_rng(0))
    assert (np.sort(grids[:, shape.units], axis=2) == np.arange(1, size + 1)).all()
    assert len(np.unique(grids, axis=0)) > 15


@pytest.mark.parametrize(("size", "rows"), keep_one_quick(2, [(4, 30), (6, 4)]))
def test_puzzles_have_one_solution_and_no_redundant_digit(size: int, rows: int) -> None:
    shape, grids, puzzles = draw_puzzles(size, rows)
    for grid, puzzle in zip(grids, puzzles, strict=True):
        assert find_all_solutions(puzzle, shape) == [tuple(grid.tolist())]
        for cell in np.flatnonzero(puzzle)[:4]:
            fewer = puzzle.copy()
            fewer[cell] = 0
            assert len(find_all_solutions(fewer, shape)) > 1


def test_a_puzzle_without_solution_is_refused() -> None:
    shape, grids, puzzles = draw_puzzles(6, 6)
    candidates = to_candidates(puzzles, shape)
    blank = (puzzles == 0).argmax(axis=1)
    rows = np.arange(6)
    candidates[rows, blank] &= ~(1 << (grids[rows, blank].astype(np.int32) - 1))
    assert not solutions(candidates, shape).any()
    assert (solutions(to_candidates(puzzles, shape), shape) == grids).all()


def test_rounds_equal_those_of_a_plain_solver() -> None:
    """Solve a round at a time, with sets; if nothing follows, the first of the most constrained cells is given."""
    shape, grids, puzzles = draw_puzzles(6, 40)
    expected = []
    for grid, puzzle in zip(grids, puzzles, strict=True):
        options = [{int(digit)} if digit else set(range(1, 7)) for digit in puzzle]
        rounds = 0
        while any(len(option) > 1 for option in options):
            remaining = [
                option - {digit for peer in shape.peers[cell] if len(options[peer]) == 1 for digit in options[peer]}
                for cell, option in enumerate(options)
            ]
            after = list(remaining)
            for unit in shape.units:
                for digit in range(1, 7):
                    candidates = [cell for cell in unit if digit in remaining[cell]]
                    if len(candidates) == 1:
                        after[candidates[0]] = {digit}
            if after == options:
                _, cell = min((len(option), cell) for cell, option in enumerate(after) if len(option) > 1)
                after[cell] = {int(grid[cell])}
            options, rounds = after, rounds + 1
        expected.append(rounds)
    assert count_rounds(puzzles, grids, shape).tolist() == expected
    assert len(set(expected)) > 3


def test_blanks_can_be_limited() -> None:
    shape, generator = SHAPES[6], np.random.default_rng(0)
    puzzles = reduce_to_minimal(draw_grids(10, shape, generator), shape, generator, blanks=12)
    assert ((puzzles == 0).sum(axis=1) == 12).all()


@pytest.mark.parametrize("size", keep_one_quick(3, SHAPES))
def test_symmetries_keep_rules_and_invariants(size: int) -> None:
    shape, grids, puzzles = draw_puzzles(size, 5)
    generator = np.random.default_rng(1)
    before = invariants(puzzles, shape)
    seen = set()
    for _ in range(20):
        cells, digits = draw_symmetry(shape, generator)
        moved = digits[grids[:, cells]]
        assert (np.sort(moved[:, shape.units], axis=2) == np.arange(1, size + 1)).all()
        assert (invariants(digits[puzzles[:, cells]], shape) == before).all()
        seen.add((tuple(cells.tolist()), tuple(digits.tolist())))
    assert len(seen) > 10


def test_symmetries_of_four_by_four_are_all_drawn() -> None:
    """Count 2!^3 of the rows, as many of the columns, twice for transposition; 4! names of the digits."""
    generator = np.random.default_rng(0)
    symmetries = [draw_symmetry(SHAPES[4], generator) for _ in range(3000)]
    assert len({tuple(cells.tolist()) for cells, _ in symmetries}) == 8 * 8 * 2
    assert len({tuple(digits.tolist()) for _, digits in symmetries}) == 24


def test_invariants_differ_between_puzzles() -> None:
    shape, _, puzzles = draw_puzzles(6, 400)
    assert len(np.unique(invariants(puzzles, shape))) == len(np.unique(puzzles, axis=0))
    changed = puzzles.copy()
    rows = np.arange(len(puzzles))
    cells = (puzzles > 0).argmax(axis=1)
    changed[rows, cells] = 0
    assert (invariants(changed, shape) != invariants(puzzles, shape)).all()


def test_no_training_puzzle_is_an_evaluation_puzzle_under_a_symmetry() -> None:
    """Use 4 x 4 Sudoku with few puzzles, of which most are left out."""
    dataset = SudokuConfig(name="sudoku", size=4, train_examples=200, max_evaluation_examples=12)
    data = load_sudoku(dataset, seed=1)
    train, held_out = (
        compute_sudoku_keys(examples.puzzles, SHAPES[4]) for examples in (data.train, *data.evaluation.values())
    )
    assert 0 < len(train) < 200
    assert not np.isin(train, held_out).any()
    with pytest.raises(DataError, match="few other puzzles of 4 x 4 cells exist"):
        load_sudoku(SudokuConfig(name="sudoku", size=4, train_examples=20, max_evaluation_examples=500), seed=1)


@pytest.mark.slow
def test_data_of_a_run_are_valid_and_augmented() -> None:
    data = load_sudoku(SudokuConfig(name="sudoku", train_examples=40, max_evaluation_examples=10), seed=3)
    assert data.labels == ("[PAD]", ".", "1", "2", "3", "4", "5", "6")
    assert data.model_fields == {"cells": 36}
    first, again, other = data.train[(0, 5)], data.train[(0, 5)], data.train[(1, 5)]
    assert (first["input_ids"] == again["input_ids"]).all()
    assert (first["input_ids"] != other["input_ids"]).any(), "another symmetry in every epoch"
    other_epoch = [data.train[(7, index)] for index in range(5)]
    for epoch, index in product(range(3), range(5)):
        example = data.train[(epoch, index)]
        is_given = example["input_ids"] > 1
        assert (example["input_ids"][is_given] == example["labels"][is_given]).all()
        assert example["difficulty"] == other_epoch[index]["difficulty"]
        assert find_all_solutions(example["input_ids"] - 1, SHAPES[6]) == [tuple((example["labels"] - 1).tolist())]
    batch = data.collate([data.evaluation["validation"][index] for index in range(4)])
    assert batch["input_ids"].shape == batch["labels"].shape == (4, 36)
    assert int(batch["labels"].min()) >= 2
    text = "".join(data.tokenizer.convert_ids_to_tokens(batch["input_ids"][0]))
    assert data.tokenizer(text)["input_ids"] == batch["input_ids"][0].tolist()


@pytest.mark.slow
def test_the_evaluation_set_depends_on_no_seed() -> None:
    sets = [
        load_sudoku(SudokuConfig(name="sudoku", train_examples=n, max_evaluation_examples=10), seed=seed)
        for n, seed in ((40, 0), (30, 1))
    ]
    first, second = (data.evaluation["validation"].puzzles for data in sets)
    assert (first == second).all()
    assert len({len(data.train) for data in sets}) == 2
