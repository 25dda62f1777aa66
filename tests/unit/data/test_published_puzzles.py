"""Folders as the published builders of Sudoku-Extreme and Maze-Hard write them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adadepth.config.data import Symmetries
from adadepth.data.puzzles.folders import load_puzzle_table
from adadepth.data.puzzles.sudoku import SHAPES, draw_grids, draw_symmetry, reduce_to_minimal
from adadepth.errors import UserError
from tests.puzzles_support import MAZE, SUDOKU, Group, make_sudoku_table, write_puzzle_arrays, write_puzzle_table

TRAIN, COPIES = 6, 3


def transform(row: tuple[np.ndarray, np.ndarray], generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a puzzle and its answer under a symmetry of Sudoku, as tokens."""
    cells, digits = draw_symmetry(SHAPES[9], generator)
    puzzle, answer = (digits[tokens[cells] - 1] + 1 for tokens in row)
    return puzzle, answer


@pytest.fixture(scope="module")
def groups() -> dict[str, list[Group]]:
    """Return Sudoku puzzles; those to train on with augmentations, those to test without, as published."""
    generator = np.random.default_rng(0)
    grids = draw_grids(TRAIN + 2, SHAPES[9], generator)
    puzzles = reduce_to_minimal(grids, SHAPES[9], generator, blanks=40)
    rows = list(zip(puzzles + 1, grids + 1, strict=True))
    train = [[row, *(transform(row, generator) for _ in range(COPIES))] for row in rows[:TRAIN]]
    return {"train": train, "test": [[row] for row in rows[TRAIN:]]}


@pytest.fixture(scope="module")
def arrays(groups: dict[str, list[Group]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_puzzle_arrays(tmp_path_factory.mktemp("sudoku-extreme-1k-aug-3"), groups, SUDOKU)


def test_cells_equal_those_of_the_table(arrays: Path, groups: dict[str, list[Group]], tmp_path: Path) -> None:
    for split, puzzle_groups in groups.items():
        write_puzzle_table(tmp_path / f"{split}.csv", puzzle_groups, SUDOKU)
    for limit in (None, 2):
        ours, theirs = (
            load_puzzle_table(make_sudoku_table(path, max_train_examples=limit), 0) for path in (arrays, tmp_path)
        )
        assert ours.summary.pop("sources")["test"] == theirs.summary.pop("sources")["test"]
        assert ours.summary == theirs.summary
        assert ours.labels == theirs.labels
        for first, second in ((ours.train, theirs.train), (ours.evaluation["test"], theirs.evaluation["test"])):
            assert len(first) == len(second)
            for index in range(len(first)):
                example, other = first[index], second[index]
                assert example.keys() == other.keys()
                assert all(np.array_equal(example[key], other[key]) for key in example)


def test_an_epoch_reads_one_augmentation_of_every_group(arrays: Path, groups: dict[str, list[Group]]) -> None:
    train = load_puzzle_table(make_sudoku_table(arrays), seed=0).train
    assert len(train) == TRAIN
    for index, group in enumerate(groups["train"]):
        read = {epoch: train[(epoch, index)] for epoch in range(60)}
        cells = {example["input_ids"].tobytes() for example in read.values()}
        assert cells == {puzzle.astype(np.int8).tobytes() for puzzle, _ in group}
        for example in read.values():
            is_given = example["input_ids"] > 1
            assert (example["input_ids"][is_given] == example["labels"][is_given]).all()
        assert (train[(7, index)]["input_ids"] == read[7]["input_ids"]).all()
    elsewhere = load_puzzle_table(make_sudoku_table(arrays), seed=1).train
    assert any((elsewhere[(e, 0)]["input_ids"] != train[(e, 0)]["input_ids"]).any() for e in range(9))


def test_a_test_puzzle_that_is_augmented_in_training_is_left_out(
    groups: dict[str, list[Group]], tmp_path: Path
) -> None:
    """Look under all symmetries if they are set, otherwise only among the augmentations."""
    other = transform(groups["train"][1][0], np.random.default_rng(5))
    tests = [*groups["test"], [groups["train"][4][2]], [other]]
    folder = write_puzzle_arrays(tmp_path / "leaking", {**groups, "test": tests}, SUDOKU)
    as_it_stands = load_puzzle_table(make_sudoku_table(folder), seed=0)
    moved_too = load_puzzle_table(make_sudoku_table(folder, symmetries=Symmetries.sudoku), seed=0)
    assert [data.summary["left_out"] for data in (as_it_stands, moved_too)] == [1, 2]
    remaining = [moved_too.train[number]["input_ids"].tolist() for number in range(4)]
    assert remaining == [groups["train"][number][0][0].tolist() for number in (0, 2, 3, 5)]
    assert moved_too.train[(0, 0)]["input_ids"].tolist() not in [row[0].tolist() for row in groups["train"][0]]
    all_of_it = write_puzzle_arrays(tmp_path / "same", {**groups, "test": [g[:1] for g in groups["train"]]}, SUDOKU)
    with pytest.raises(UserError, match="every training puzzle is one of the evaluation puzzles"):
        load_puzzle_table(make_sudoku_table(all_of_it), seed=0)


def test_augmentations_of_held_out_puzzles_are_not_trained(arrays: Path) -> None:
    data = load_puzzle_table(make_sudoku_table(arrays, held_out=0.5, evaluation_splits=["held_out"]), seed=0)
    assert [len(data.train), len(data.evaluation["held_out"])] == [TRAIN // 2, TRAIN // 2]
    assert data.summary["left_out"] == 0


def change_array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "train" / f"all__{name}.npy"
        np.save(path, change(np.load(path)))

    return damage


def change_fact(key: str, value: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "train" / "dataset.json"
        facts = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in {**facts, key: value}.items() if v is not None}))

    return damage


def replace_by_archive(folder: Path) -> None:
    np.savez(folder / "labels", labels=np.ones(3))
    (folder / "labels.npz").rename(folder / "train" / "all__labels.npy")


def truncate(folder: Path) -> None:
    path = folder / "train" / "all__labels.npy"
    path.write_bytes(path.read_bytes()[:-40])


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no split": (lambda f: shutil.rmtree(f / "test"), "dataset.evaluation_splits=test: no such folder in "),
    "no facts": (lambda f: (f / "train/dataset.json").unlink(), "train/dataset.json: is missing"),
    "no json": (lambda f: (f / "train/dataset.json").write_text("{"), "train/dataset.json: cannot be read as JSON"),
    "no list": (lambda f: (f / "train/dataset.json").write_text("3"), "train/dataset.json: lacks seq_len"),
    "no cells": (change_fact("seq_len", None), "train/dataset.json: lacks seq_len"),
    "other cells": (change_fact("seq_len", 80), "all__inputs.npy: has 81 cells a row, dataset.json says seq_len=80"),
    "other symbols": (change_fact("vocab_size", 12),
     "vocab_size=12, but must be 11: padding and the 10 of dataset.symbols"),
    "other padding": (change_fact("ignore_label_id", None), "lacks ignore_label_id"),
    "several kinds": (change_fact("num_puzzle_identifiers", 3),
     "num_puzzle_identifiers=3, but must be 1: puzzles of several"),
    "several sets": (change_fact("sets", ["all", "concept"]), "sets=['all', 'concept'], but must be ['all']"),
    "other groups": (change_fact("total_groups", 9),
     "all__group_indices.npy: has 6 groups, dataset.json says total_groups=9"),
    "no file": (lambda f: (f / "train/all__labels.npy").unlink(), "all__labels.npy: is missing"),
    "empty file": (lambda f: (f / "train/all__labels.npy").write_bytes(b""), "all__labels.npy: cannot be read"),
    "text": (lambda f: (f / "train/all__labels.npy").write_text("text"), "all__labels.npy: cannot be read as an array"),
    "an archive": (replace_by_archive, "all__labels.npy: cannot be read as an array"),
    "cut off": (truncate, "all__labels.npy: cannot be read as an array"),
    "pickled": (change_array("labels", lambda a: a.astype(object)), "all__labels.npy: cannot be read as an array"),
    "flat": (change_array("inputs", np.ravel),
     "all__inputs.npy: is int64 of shape (1944,); whole numbers of 2 dimensions"),
    "fractions": (change_array("inputs", lambda a: a + 0.5),
     "all__inputs.npy: is float64 of shape (24, 81); whole numbers"),
    "no rows": (change_array("labels", lambda a: a[:0]), "all__labels.npy: is uint8 of shape (0, 81)"),
    "fewer rows": (change_array("labels", lambda a: a[1:]),
     "all__labels.npy: has shape (23, 81), but the inputs have (24, 81)"),
    "a high token": (change_array("labels", lambda a: a + 1),
     "all__labels.npy: has the token 11; tokens must be from 0 to 10"),
    "a low token": (change_array("inputs", lambda a: a - 2),
     "all__inputs.npy: has the token -1; tokens must be from 0 to 10"),
    "puzzles end early": (change_array("puzzle_indices", lambda a: a[:-1]),
     "all__puzzle_indices.npy: must rise from 0 to 24"),
    "empty puzzles": (change_array("puzzle_indices", lambda a: a.clip(min=1) - 1),
     "all__puzzle_indices.npy: must rise"),
    "groups of rows": (change_array("group_indices", lambda a: a * 2),
     "all__group_indices.npy: must rise from 0 to 24"),
    "another kind": (change_array("puzzle_identifiers", lambda a: a + 1),
     "all__puzzle_identifiers.npy: must be 24 zeros"),
    "fewer kinds": (change_array("puzzle_identifiers", lambda a: a[1:]),
     "all__puzzle_identifiers.npy: must be 24 zeros"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_missing_or_damaged_files_are_one_line_errors(name: str, arrays: Path, tmp_path: Path) -> None:
    damage, message = DAMAGES[name]
    folder = Path(shutil.copytree(arrays, tmp_path / "data"))
    damage(folder)
    with pytest.raises(UserError) as raised:
        load_puzzle_table(make_sudoku_table(folder), seed=0)
    assert message in str(raised.value)
    assert str(raised.value).startswith("dataset.")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"difficulty_column": "rating"}, "dataset.difficulty_column=rating: dataset.path="),
        ({"question_column": "input"}, "dataset.question_column=input: dataset.path="),
        ({"symbols": MAZE}, "vocab_size=11, but must be 6"),
        ({"train_split": "tarin"}, "dataset.train_split=tarin: no such folder"),
    ],
)
def test_settings_that_do_not_fit_are_one_line_errors(changes: dict[str, Any], message: str, arrays: Path) -> None:
    with pytest.raises(UserError) as raised:
        load_puzzle_table(make_sudoku_table(arrays, **changes), seed=0)
    assert message in str(raised.value)


def test_a_puzzle_of_several_rows_is_a_part_of_its_group(tmp_path: Path) -> None:
    """Use several examples of a puzzle: groups count puzzles, these rows. Label 0 is no answer."""
    rows = [(np.full(4, number), np.array([1, 0, number, 0])) for number in (1, 2, 3, 4)]
    folder = write_puzzle_arrays(tmp_path / "data", {"train": [rows], "test": [[(np.full(4, 5), np.full(4, 5))]]}, MAZE)
    for name, values in {
        "puzzle_indices": [0, 1, 3, 4],
        "puzzle_identifiers": [0] * 3,
        "group_indices": [0, 2, 3],
    }.items():
        np.save(folder / "train" / f"all__{name}.npy", np.array(values, dtype=np.int32))
    change_fact("total_groups", 2)(folder)
    data = load_puzzle_table(make_sudoku_table(folder, symbols=MAZE), seed=0)
    assert len(data.train) == 2
    first_cells = [{data.train[(epoch, index)]["input_ids"][0] for epoch in range(40)} for index in range(2)]
    assert first_cells == [{1, 2, 3}, {4}]
    assert data.collate([data.train[1]])["labels"].tolist() == [[1, -100, 4, -100]]
