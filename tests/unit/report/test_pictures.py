"""Pictures of a report: boxes of puzzles, curves, lines of matched baselines, and colours."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from adadepth.metrics.grid_examples import find_box_shape
from adadepth.report.difficulty import difficulty
from adadepth.report.example_grids import examples
from adadepth.report.figure import Boards, Lines
from adadepth.report.run_files import GRIDS, RIVALS, RunFiles, read_run
from adadepth.report.style import WRONG
from adadepth.report.training_curves import losses
from tests.unit.report.synthetic import make_run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    return read_run(make_run(tmp_path_factory.mktemp("run"), max_updates=6, evaluations=2))


def make_sudoku(rows: int, columns: int) -> list[list[str]]:
    """Return a solved Sudoku with boxes of this shape."""
    size = rows * columns
    return [
        [str((columns * (row % rows) + row // rows + column) % size + 1) for column in range(size)]
        for row in range(size)
    ]


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 3), (3, 4)])
def test_boxes_are_found_in_the_solution(shape: tuple[int, int]) -> None:
    assert find_box_shape(make_sudoku(*shape)) == shape


def test_other_puzzles_have_no_boxes() -> None:
    assert find_box_shape([["#", ".", "#"], [".", ".", "."], ["#", "o", "#"]]) is None
    assert find_box_shape([["1", "2", "3"], ["2", "3", "1"], ["3", "1", "2"]]) is None, "a Latin square of a prime"


def test_a_puzzle_has_the_lines_of_its_boxes_and_cells_of_a_legible_size(files: RunFiles) -> None:
    label = make_sudoku(3, 3)
    cells = [[symbol if (row + column) % 3 == 0 else "." for column, symbol in enumerate(of_row)]
             for row, of_row in enumerate(label)]  # fmt: skip
    wrong = [["9" if symbol == "." else symbol for symbol in row] for row in cells]
    grid = {"index": 0, "kind": "puzzle", "attributes": {}, "cells": cells, "label": label, "answers": [wrong, label]}
    section = examples(dataclasses.replace(files, others={GRIDS: {"max_depth": 6, "sets": {"validation": [grid]}}}))
    assert section is not None
    (panel,) = section.figures[0].panels
    assert isinstance(panel.mark, Boards)
    assert panel.mark.box == (3, 3)
    assert [list(borders) for borders in panel.mark.borders] == [[0, 3, 6, 9]] * 2
    (side, *_) = (float(factor) for factor in re.findall(r"scale\(([\d.]+)\)", str(section.html)))
    assert side * panel.mark.columns > 200, "pixels of a board"
    assert "M0 3h9" in str(section.html)
    assert f'stroke="{WRONG}"' in str(section.html)
    assert "Orange frame: wrong" in str(section.html)


def test_metrics_that_are_zero_or_known_once_have_no_curve(files: RunFiles) -> None:
    lines: list[dict[str, Any]] = [
        {"step": 10, "train/loss": 2.0, "train/ponder_loss": 0.0, "eval/ponder_loss": 0.0},
        {"step": 20, "train/loss": 1.0, "train/ponder_loss": 0.0, "eval/halt_loss": 0.3},
    ]
    section = losses(dataclasses.replace(files, metrics=lines))
    assert [panel.title for figure in section.figures for panel in figure.panels] == ["Loss"]
    assert "Not drawn, because zero throughout: Ponder loss." in section.html
    assert "Not drawn, because known at one step only: Halt loss." in section.html


def test_accuracy_by_difficulty_has_a_line_of_the_matched_baseline(files: RunFiles) -> None:
    rows = [
        {"difficulty": number, "n": 9, "mean": 2.0, "std": 0.5, "p10": 1, "p90": 3, "accuracy": 0.8}
        for number in (1, 2)
    ]
    rival = {
        "kind": "fixed depth",
        "max_depth": 3,
        "difficulty": {"inside": [{**row, "accuracy": 0.4} for row in rows]},
    }
    halting = {**files.halting, "set": "inside", "difficulty": {"rows": rows}}
    with_rival = dataclasses.replace(files, halting=halting, others={RIVALS: {"rows": [{"kind": "adaptive"}, rival]}})
    for run_files, names in (
        (with_rival, ["inside", "inside, fixed depth 3"]),
        (dataclasses.replace(with_rival, others={RIVALS: {}}), ["inside"]),
    ):
        section = difficulty(run_files)
        assert section is not None
        mark = section.figures[0].panels[1].mark
        assert isinstance(mark, Lines)
        assert [name for name, _ in mark.curves] == names


def test_matched_baselines_of_older_runs_have_no_line(files: RunFiles, tmp_path: Path) -> None:
    halting = {**files.halting, "difficulty": {"rows": [{"difficulty": 1, "n": 9, "mean": 2.0, "accuracy": 0.8}]}}
    rows = [{"kind": "adaptive"}, {"kind": "fixed depth", "max_depth": 3}]
    assert difficulty(dataclasses.replace(files, halting=halting, others={RIVALS: {"rows": rows}})) is not None
