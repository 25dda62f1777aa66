"""Puzzles from files in the layout of Sudoku-Extreme and Maze-Hard, and generated ways through mazes."""

from __future__ import annotations

import csv
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadepth.config.data import CellCount, MazePathConfig, Symmetries
from adadepth.data.puzzles.folders import load_puzzle_table
from adadepth.data.puzzles.generated import SYMBOLS, load_maze_path
from adadepth.data.puzzles.sudoku import (
    SHAPES,
    compute_square_keys,
    draw_grids,
    draw_symmetry,
    list_square_symmetries,
    reduce_to_minimal,
)
from adadepth.errors import ConfigError, DataError
from tests.puzzles_support import sudoku_table


def text_of(digits: np.ndarray) -> str:
    return "".join("." if digit == 0 else str(digit) for digit in digits)


def written(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> Path:
    for split, found in rows.items():
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, found[0])
            writer.writeheader()
            writer.writerows(found)
    return folder


@pytest.fixture(scope="module")
def sudoku(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty puzzles to train on and five to test; the first of these is the first training puzzle, moved."""
    shape, generator = SHAPES[9], np.random.default_rng(0)
    grids = draw_grids(24, shape, generator)
    puzzles = reduce_to_minimal(grids, shape, generator, blanks=40)
    cells, digits = draw_symmetry(shape, generator)
    moved = digits[puzzles[:1, cells]], digits[grids[:1, cells]]
    puzzles, grids = (
        np.concatenate([drawn[:20], first, drawn[20:]]) for drawn, first in zip((puzzles, grids), moved, strict=True)
    )
    rows = [
        {"source": "drawn", "question": text_of(puzzle), "answer": text_of(grid), "rating": number % 7}
        for number, (puzzle, grid) in enumerate(zip(puzzles, grids, strict=True))
    ]
    return written(tmp_path_factory.mktemp("sudoku-extreme"), {"train": rows[:20], "test": rows[20:]})


def test_published_files_are_read(sudoku: Path) -> None:
    data = load_puzzle_table(sudoku_table(sudoku), seed=0)
    with (sudoku / "train.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(data.train) == len(rows) == 20
    assert len(data.labels) == 11
    for number, row in enumerate(rows):
        example = data.train[(3, number)]
        wanted = ([".123456789".index(symbol) + 1 for symbol in row[name]] for name in ("question", "answer"))
        assert [example["input_ids"].tolist(), example["labels"].tolist()] == list(wanted)
        assert example["difficulty"] == row["question"].count(".")
    rated = load_puzzle_table(sudoku_table(sudoku, difficulty_column="rating"), seed=0)
    assert [rated.train[n]["difficulty"] for n in range(8)] == [0, 1, 2, 3, 4, 5, 6, 0]
    assert rated.train.attributes.keys() == {"givens", "rating"}
    assert rated.train.attributes["givens"].tolist() == [81 - row["question"].count(".") for row in rows]
    assert rated.evaluation["test"].attributes["rating"].tolist() == [number % 7 for number in range(20, 25)]
    few = load_puzzle_table(sudoku_table(sudoku, max_train_examples=4, max_evaluation_examples=2), seed=0)
    assert (len(few.train), len(few.evaluation["test"])) == (4, 2)


def test_a_difficulty_that_is_no_number_is_told(sudoku: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"dataset\.difficulty_column=source: .* has values other "
        r"than integers in that column",
    ):
        load_puzzle_table(sudoku_table(sudoku, difficulty_column="source"), seed=0)


def test_columns_of_whole_numbers_in_all_rows_are_attributes(tmp_path: Path) -> None:
    """The way of the maze has four steps; a column is no attribute for one value that is not a number from 0 on."""
    maze = {"question": "S  ## ##G", "answer": "Soo##o##G"}
    rows = [{**maze, "turns": turns, "score": score} for turns, score in (("1", "7"), ("12", "-7"))]
    turned = [{**row, **{key: row[key][::-1] for key in maze}} for row in rows]  # else they would be left out
    path = written(tmp_path, {"train": turned, "test": rows})
    data = load_puzzle_table(sudoku_table(path, symbols="# SGo", counted=CellCount.path_length), seed=0)
    found = {name: values.tolist() for name, values in data.evaluation["test"].attributes.items()}
    assert found == {"path length": [4, 4], "turns": [1, 12]}
    assert [data.train[number]["difficulty"] for number in (0, 1)] == [4, 4]


def test_a_training_puzzle_that_is_a_test_puzzle_moved_is_left_out(sudoku: Path) -> None:
    data = load_puzzle_table(sudoku_table(sudoku, symmetries=Symmetries.sudoku), seed=0)
    assert len(data.train) == 19
    assert data.summary["left_out"] == 1
    first, same, other = data.train[(0, 3)], data.train[(0, 3)], data.train[(1, 3)]
    assert (first["input_ids"] == same["input_ids"]).all()
    assert (first["input_ids"] != other["input_ids"]).any()
    for example in (first, other):
        units = example["labels"][SHAPES[9].units]
        assert (np.sort(units, axis=1) == np.arange(2, 11)).all()
        given = example["input_ids"] > 1
        assert (example["input_ids"][given] == example["labels"][given]).all()


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("question", "." * 80, "line 3, column question: must be a text of 81 symbols"),
        ("answer", "x" * 81, "line 3, column answer: 'x' is not in dataset.symbols"),
        ("answer", "é" * 81, "line 3, column answer: must be a text of 81 symbols"),
    ],
)
def test_what_is_no_puzzle_is_told(column: str, text: str, message: str, tmp_path: Path) -> None:
    good = {"question": "." * 81, "answer": "1" * 81}
    path = written(tmp_path, {"train": [good, {**good, column: text}], "test": [good]})
    with pytest.raises(DataError, match=message):
        load_puzzle_table(sudoku_table(path), seed=0)


def test_symmetries_need_their_shape(tmp_path: Path) -> None:
    row = {"question": "." * 25, "answer": "1" * 25}
    path = written(tmp_path, {"train": [row], "test": [row]})
    with pytest.raises(ConfigError, match=r"dataset\.symmetries=sudoku: the puzzles have 25 cells"):
        load_puzzle_table(sudoku_table(path, symmetries=Symmetries.sudoku), seed=0)


def test_the_symmetries_of_a_square() -> None:
    laid = list_square_symmetries(9)
    assert len(np.unique(laid, axis=0)) == 8
    grids = np.random.default_rng(0).integers(1, 4, (5, 9))
    names = compute_square_keys(grids)
    assert len(set(names)) == 5
    for cells in laid:
        assert (compute_square_keys(grids[:, cells]) == names).all()


def lengths_of_ways(cells: list[str], size: int) -> dict[int, int]:
    """Breadth first from the start over all cells but walls."""
    start = cells.index("S")
    found, waiting = {start: 0}, deque([start])
    while waiting:
        here = waiting.popleft()
        y, x = divmod(here, size)
        for to_y, to_x in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            to = to_y * size + to_x
            if 0 <= to_y < size and 0 <= to_x < size and cells[to] != "#" and to not in found:
                found[to] = found[here] + 1
                waiting.append(to)
    return found


def test_ways_through_mazes_are_the_only_shortest_ones() -> None:
    dataset = MazePathConfig(name="maze_path", size=7, train_examples=60, max_evaluation_examples=20)
    data = load_maze_path(dataset, seed=0)
    for epoch, index in ((epoch, index) for epoch in (0, 1) for index in range(30)):
        example = data.train[(epoch, index)]
        puzzle, answer = ([SYMBOLS[token - 1] for token in example[name]] for name in ("input_ids", "labels"))
        assert [a for a in answer if a != "o"] == [p for p, a in zip(puzzle, answer, strict=True) if a != "o"]
        away = lengths_of_ways(puzzle, 7)
        length = away[puzzle.index("G")]
        assert example["difficulty"] == data.train.attributes["path length"][index] == length == answer.count("o") + 1
        only_way = ["#" if symbol == "." else symbol for symbol in answer]
        assert lengths_of_ways(only_way, 7)[puzzle.index("G")] == length, "what is marked is a way"
        for cell in (number for number, symbol in enumerate(answer) if symbol == "o"):
            blocked = [*puzzle[:cell], "#", *puzzle[cell + 1 :]]
            assert lengths_of_ways(blocked, 7).get(puzzle.index("G"), 99) > length, "there is no other one"
    held_out = compute_square_keys(data.evaluation["validation"].puzzles)
    assert not np.isin(compute_square_keys(data.train.puzzles), held_out).any()
