"""Puzzles from files in the layout of Sudoku-Extreme and Maze-Hard, and generated paths through mazes."""

from __future__ import annotations

import csv
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadepth.config.data import CellCount, MazePathConfig, Symmetries
from adadepth.data.puzzles.dataset import PuzzleExamples, build_puzzle_data
from adadepth.data.puzzles.folders import load_puzzle_table
from adadepth.data.puzzles.generated import SYMBOLS, draw_paths, load_maze_path
from adadepth.data.puzzles.sudoku import (
    SHAPES,
    compute_square_keys,
    draw_grids,
    draw_symmetry,
    list_square_symmetries,
    reduce_to_minimal,
)
from adadepth.errors import ConfigError, DataError
from tests.puzzles_support import make_sudoku_table


def format_digits(digits: np.ndarray) -> str:
    return "".join("." if digit == 0 else str(digit) for digit in digits)


def write_tables(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> Path:
    for split, split_rows in rows.items():
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, split_rows[0])
            writer.writeheader()
            writer.writerows(split_rows)
    return folder


@pytest.fixture(scope="module")
def sudoku(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return twenty puzzles to train on and five to test; the first of these is the first training puzzle, moved."""
    shape, generator = SHAPES[9], np.random.default_rng(0)
    grids = draw_grids(24, shape, generator)
    puzzles = reduce_to_minimal(grids, shape, generator, blanks=40)
    cells, digits = draw_symmetry(shape, generator)
    moved = digits[puzzles[:1, cells]], digits[grids[:1, cells]]
    puzzles, grids = (
        np.concatenate([sampled[:20], first, sampled[20:]])
        for sampled, first in zip((puzzles, grids), moved, strict=True)
    )
    rows = [
        {"source": "drawn", "question": format_digits(puzzle), "answer": format_digits(grid), "rating": number % 7}
        for number, (puzzle, grid) in enumerate(zip(puzzles, grids, strict=True))
    ]
    return write_tables(tmp_path_factory.mktemp("sudoku-extreme"), {"train": rows[:20], "test": rows[20:]})


def test_published_files_are_read(sudoku: Path) -> None:
    data = load_puzzle_table(make_sudoku_table(sudoku), seed=0)
    with (sudoku / "train.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(data.train) == len(rows) == 20
    assert len(data.labels) == 11
    for number, row in enumerate(rows):
        example = data.train[(3, number)]
        expected = ([".123456789".index(symbol) + 1 for symbol in row[name]] for name in ("question", "answer"))
        assert [example["input_ids"].tolist(), example["labels"].tolist()] == list(expected)
        assert example["difficulty"] == row["question"].count(".")
    rated = load_puzzle_table(make_sudoku_table(sudoku, difficulty_column="rating"), seed=0)
    assert [rated.train[n]["difficulty"] for n in range(8)] == [0, 1, 2, 3, 4, 5, 6, 0]
    assert rated.train.attributes.keys() == {"givens", "rating"}
    assert rated.train.attributes["givens"].tolist() == [81 - row["question"].count(".") for row in rows]
    assert rated.evaluation["test"].attributes["rating"].tolist() == [number % 7 for number in range(20, 25)]
    few = load_puzzle_table(make_sudoku_table(sudoku, max_train_examples=4, max_evaluation_examples=2), seed=0)
    assert (len(few.train), len(few.evaluation["test"])) == (4, 2)


def test_a_difficulty_that_is_no_number_is_a_one_line_error(sudoku: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"dataset\.difficulty_column=source: .* has values other "
        r"than integers in that column",
    ):
        load_puzzle_table(make_sudoku_table(sudoku, difficulty_column="source"), seed=0)


def test_columns_of_whole_numbers_in_all_rows_are_attributes(tmp_path: Path) -> None:
    """Read a path of four steps; a column with one value that is not a number from 0 on is no attribute."""
    maze = {"question": "S  ## ##G", "answer": "Soo##o##G"}
    rows = [{**maze, "turns": turns, "score": score} for turns, score in (("1", "7"), ("12", "-7"))]
    turned = [{**row, **{key: row[key][::-1] for key in maze}} for row in rows]  # else they would be left out
    path = write_tables(tmp_path, {"train": turned, "test": rows})
    data = load_puzzle_table(make_sudoku_table(path, symbols="# SGo", counted=CellCount.path_length), seed=0)
    attributes = {name: values.tolist() for name, values in data.evaluation["test"].attributes.items()}
    assert attributes == {"path length": [4, 4], "turns": [1, 12]}
    assert [data.train[number]["difficulty"] for number in (0, 1)] == [4, 4]


def test_a_training_puzzle_equivalent_to_a_test_puzzle_is_left_out(sudoku: Path) -> None:
    data = load_puzzle_table(make_sudoku_table(sudoku, symmetries=Symmetries.sudoku), seed=0)
    assert len(data.train) == 19
    assert data.summary["left_out"] == 1
    first, same, other = data.train[(0, 3)], data.train[(0, 3)], data.train[(1, 3)]
    assert (first["input_ids"] == same["input_ids"]).all()
    assert (first["input_ids"] != other["input_ids"]).any()
    for example in (first, other):
        units = example["labels"][SHAPES[9].units]
        assert (np.sort(units, axis=1) == np.arange(2, 11)).all()
        is_given = example["input_ids"] > 1
        assert (example["input_ids"][is_given] == example["labels"][is_given]).all()


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("question", "." * 80, "line 3, column question: must be a text of 81 symbols"),
        ("answer", "x" * 81, "line 3, column answer: 'x' is not in dataset.symbols"),
        ("answer", "é" * 81, "line 3, column answer: must be a text of 81 symbols"),
    ],
)
def test_invalid_puzzles_are_one_line_errors(column: str, text: str, message: str, tmp_path: Path) -> None:
    good = {"question": "." * 81, "answer": "1" * 81}
    path = write_tables(tmp_path, {"train": [good, {**good, column: text}], "test": [good]})
    with pytest.raises(DataError, match=message):
        load_puzzle_table(make_sudoku_table(path), seed=0)


def test_symmetries_need_their_shape(tmp_path: Path) -> None:
    row = {"question": "." * 25, "answer": "1" * 25}
    path = write_tables(tmp_path, {"train": [row], "test": [row]})
    with pytest.raises(ConfigError, match=r"dataset\.symmetries=sudoku: the puzzles have 25 cells"):
        load_puzzle_table(make_sudoku_table(path, symmetries=Symmetries.sudoku), seed=0)


def test_a_square_has_eight_symmetries() -> None:
    symmetries = list_square_symmetries(9)
    assert len(np.unique(symmetries, axis=0)) == 8
    grids = np.random.default_rng(0).integers(1, 4, (5, 9))
    names = compute_square_keys(grids)
    assert len(set(names)) == 5
    for cells in symmetries:
        assert (compute_square_keys(grids[:, cells]) == names).all()


def compute_path_lengths(cells: list[str], size: int) -> dict[int, int]:
    """Return path lengths by a breadth-first search from the start over all cells but walls."""
    start = cells.index("S")
    lengths, waiting = {start: 0}, deque([start])
    while waiting:
        cell = waiting.popleft()
        y, x = divmod(cell, size)
        for to_y, to_x in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            to = to_y * size + to_x
            if 0 <= to_y < size and 0 <= to_x < size and cells[to] != "#" and to not in lengths:
                lengths[to] = lengths[cell] + 1
                waiting.append(to)
    return lengths


def test_paths_through_mazes_are_the_only_shortest_ones() -> None:
    dataset = MazePathConfig(name="maze_path", size=7, train_examples=60, max_evaluation_examples=20)
    data = load_maze_path(dataset, seed=0)
    for epoch, index in ((epoch, index) for epoch in (0, 1) for index in range(30)):
        example = data.train[(epoch, index)]
        puzzle, answer = ([SYMBOLS[token - 1] for token in example[name]] for name in ("input_ids", "labels"))
        assert [a for a in answer if a != "o"] == [p for p, a in zip(puzzle, answer, strict=True) if a != "o"]
        path_lengths = compute_path_lengths(puzzle, 7)
        length = path_lengths[puzzle.index("G")]
        assert example["difficulty"] == data.train.attributes["path length"][index] == length == answer.count("o") + 1
        only_way = ["#" if symbol == "." else symbol for symbol in answer]
        assert compute_path_lengths(only_way, 7)[puzzle.index("G")] == length, "what is marked is a way"
        for cell in (number for number, symbol in enumerate(answer) if symbol == "o"):
            blocked = [*puzzle[:cell], "#", *puzzle[cell + 1 :]]
            assert compute_path_lengths(blocked, 7).get(puzzle.index("G"), 99) > length, "there is no other one"
    held_out = compute_square_keys(data.evaluation["validation"].puzzles)
    assert not np.isin(compute_square_keys(data.train.puzzles), held_out).any()


def test_mazes_without_a_path_are_refused() -> None:
    dataset = MazePathConfig(name="maze_path", walls=0.99, size=5)
    with pytest.raises(ConfigError, match=r"^dataset.walls=0.99: hardly a maze of dataset.size=5 has a path$"):
        draw_paths(dataset, 4, 0, evaluation=False)


def test_puzzles_without_a_question_are_refused() -> None:
    cells = np.ones((3, 4), dtype=np.int8)
    examples = PuzzleExamples(cells, cells, np.zeros(3, dtype=np.int64), {})
    with pytest.raises(DataError, match="nothing can be learned"):
        build_puzzle_data(MazePathConfig(name="maze_path"), examples, {}, "ab", {})
    wide = PuzzleExamples(cells.reshape(1, 12), cells.reshape(1, 12), np.zeros(1, dtype=np.int64), {})
    with pytest.raises(ConfigError, match=r"^dataset.sequence_length=8: a puzzle has 12 cells$"):
        build_puzzle_data(MazePathConfig(name="maze_path", sequence_length=8), wide, {}, "ab", {})
