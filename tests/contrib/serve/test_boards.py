"""Boards parsed from text: targets of an edited example against those of a drawn one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adadepth.config import TokenizerConfig
from adadepth.data import load_labelled_data
from adadepth.data.registry import find_editable_grid
from adadepth.errors import DataError
from tests.configs.support import configured

FEW = ("dataset.train_examples=64", "dataset.max_evaluation_examples=6")
DRAWN = {
    "maze": ("act_maze", *FEW),
    "addition": ("act_addition", *FEW),
    "hops": ("act_hops", *FEW),
    "hops_causal": ("loop_hops", *FEW),
    "hops_sequence": ("ponder_hops", *FEW),
    "sudoku": ("trm_tiny", *FEW, "dataset.size=4"),
    "maze_path": ("trm_tiny", "dataset=maze_path", *FEW),
}


def draw_board(name: str) -> tuple[Any, Any, Any]:
    """Return settings, data and board."""
    config = configured(*DRAWN[name])
    data = load_labelled_data(config.dataset, TokenizerConfig(), 0)
    return config.dataset, data, find_editable_grid(config.dataset)


def list_cells(data: Any, example: Any) -> list[str]:
    special = example.get("special_tokens_mask", np.zeros(len(example["input_ids"])))
    return data.tokenizer.convert_ids_to_tokens(np.asarray(example["input_ids"])[np.asarray(special) == 0].tolist())


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawn_board_is_parsed_as_its_example(name: str) -> None:
    dataset, data, board = draw_board(name)
    for examples in data.evaluation.values():
        for number in range(4):
            example = examples[number]
            cells = list_cells(data, example)
            parsed = board.parse(dataset, board.to_text(dataset, cells), example, len(cells))
            assert (np.asarray(parsed["input_ids"]) == example["input_ids"]).all()
            for key in ("position_ids", "difficulties", "difficulty", "label"):
                assert np.array_equal(parsed.get(key), example.get(key)), key
            if "labels" in example:  # of an edited board all are asked for, of a drawn one those of some difficulties
                has_label = np.asarray(example["labels"]) >= 0
                assert (np.asarray(parsed["labels"])[has_label] == np.asarray(example["labels"])[has_label]).all()


def parse_edited(name: str, text: str) -> dict[str, Any]:
    dataset, data, board = draw_board(name)
    example = next(iter(data.evaluation.values()))[0]
    return board.parse(dataset, text, example, len(list_cells(data, example)))


def test_a_wall_changes_reachability_and_distances() -> None:
    free = parse_edited("maze", "\n".join(["S......."] + ["########"] * 7))
    walled = parse_edited("maze", "\n".join(["S..#...."] + ["########"] * 7))
    assert free["difficulties"][:8].tolist() == [-1, 1, 2, 3, 4, 5, 6, 7]
    assert walled["labels"][:8].tolist() == [-100, 1, 1, -100, 0, 0, 0, 0]


def test_a_sudoku_of_several_solutions_has_no_target() -> None:
    assert not parse_edited("sudoku", "\n".join(["...."] * 4))["labels"].any()


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("maze", "\n".join(["........"] * 8), "one start S, but has 0"),
        ("maze", "S.x", "row 1: 'x' is not a symbol"),
        ("maze", "S..", "must have 8 rows of 8 cells, but has 3"),
        ("maze", "<script>", "row 1: '<' is not a symbol"),
        ("hops", " ".join(["red", ">2", ">1", *["green"] * 13]), "pointers from node 1 form a cycle"),
        ("sudoku", "11..\n....\n....\n....", "has no solution"),
        ("maze_path", "\n".join(["#" * 10] * 10), "one start S and one goal G"),
    ],
)
def test_an_invalid_board_is_a_one_line_error(name: str, text: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        parse_edited(name, text)
