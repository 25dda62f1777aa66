"""Depth and accuracy by difficulty, compared with plain loops, and their tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from adadepth.halting.trace import DepthTrace
from adadepth.metrics.depth_statistics import HaltingStatistics, flatten
from adadepth.metrics.grid_examples import GridSampler, format_grid_caption
from adadepth.metrics.unit_classes import build_sequence_classes
from adadepth.report.depth_by_class import format_halting, write_halting_files
from adadepth.report.difficulty import get_difficulty_curves, get_difficulty_sets
from adadepth.report.example_grids import draw_depth_cells, draw_distance_cells
from adadepth.report.pages import draw_figures, write_report
from adadepth.report.run_files import read_run, write_grids
from tests.pages_support import read_report
from tests.unit.report.synthetic_difficulty import DEPTH, DIFFICULTIES, LABELS, make_batches, summarise_batches


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    return summarise_batches()


def list_tokens() -> list[tuple[int, int, int, int]]:
    """Return (difficulty, updates, label, prediction) of every real token."""
    return [
        (int(batch["difficulty"][row, position]), int(batch["trace"].updates[row, position]),
         int(batch["labels"][row, position]), int(batch["logits"][row, position].argmax()))
        for batch in make_batches() for row in range(7) for position in range(9) if batch["trace"].valid[row, position]
    ]  # fmt: skip


def test_rows_equal_a_loop_over_tokens(summary: dict[str, Any]) -> None:
    for row in summary["difficulty"]["rows"]:
        members = [token for token in list_tokens() if token[0] == row["difficulty"]]
        predicted = [token[2] == token[3] for token in members if token[2] >= 0]
        assert (row["n"], row["accuracy_n"]) == (len(members), len(predicted))
        assert row["mean"] == pytest.approx(np.mean([token[1] for token in members]))
        assert row["accuracy"] == pytest.approx(np.mean(predicted))
    assert [row["difficulty"] for row in summary["difficulty"]["rows"]] == list(range(DIFFICULTIES))


def test_the_correlation_equals_that_of_scipy(summary: dict[str, Any]) -> None:
    with_difficulty = [token for token in list_tokens() if token[0] >= 0]
    correlation = summary["difficulty"]["spearman"]
    assert correlation["value"] == pytest.approx(
        spearmanr([t[0] for t in with_difficulty], [t[1] for t in with_difficulty]).statistic
    )
    assert correlation["n"] == len(with_difficulty)
    assert correlation["low"] < correlation["value"] < correlation["high"]


def test_classes_of_tokens_equal_a_loop(summary: dict[str, Any]) -> None:
    members = {
        "all": lambda token: True, "correct": lambda token: token[2] >= 0 and token[2] == token[3],
        "wrong": lambda token: token[2] >= 0 and token[2] != token[3], "unlabelled": lambda token: token[2] < 0,
        "label: maybe": lambda token: token[2] == 2, "difficulty <= 1": lambda token: 0 <= token[0] <= 1,
        "difficulty 2-3": lambda token: 2 <= token[0] <= 3, "difficulty > 3": lambda token: token[0] > 3,
    }  # fmt: skip
    for name, is_member in members.items():
        selected, figures = [token for token in list_tokens() if is_member(token)], summary["classes"][name]
        predicted = [token[2] == token[3] for token in selected if token[2] >= 0]
        assert figures["n"] == len(selected)
        assert figures["mean"] == pytest.approx(np.mean([token[1] for token in selected]))
        assert figures.get("accuracy") == (pytest.approx(np.mean(predicted)) if predicted else None)
        assert figures["loss_n"] == len(predicted)


def test_metrics_have_names_for_trackers(summary: dict[str, Any]) -> None:
    flat = flatten(summary)
    assert flat["halting/spearman_depth_difficulty"] == summary["difficulty"]["spearman"]["value"]
    assert flat["halting/difficulty/3/mean"] == summary["difficulty"]["rows"][3]["mean"]
    assert flat["halting/difficulty/3/accuracy"] == summary["difficulty"]["rows"][3]["accuracy"]
    assert flat["halting/wrong/accuracy"] == 0


def test_a_constant_depth_is_the_reason_of_a_missing_correlation() -> None:
    statistics = HaltingStatistics(2, ("all",), "cpu", 3)
    trace = DepthTrace("sequence", torch.ones(4), torch.ones(4, dtype=torch.bool), 2)
    statistics.update(trace, {"all": trace.valid}, difficulty=torch.tensor([0, 1, 2, 2]))
    content = statistics.summary()
    assert "spearman" not in content["difficulty"]
    assert "accuracy" not in content["difficulty"]["rows"][0]
    assert content["missing"]["halting/spearman_depth_difficulty"] == "depth or difficulty is constant"


def test_the_number_of_difficulties_follows_from_the_set() -> None:
    lengths = torch.tensor([3, 3])
    assert build_sequence_classes(LABELS, lengths, torch.tensor([0, 4, 2])).difficulties == 5
    assert build_sequence_classes(LABELS, lengths, torch.tensor([], dtype=torch.int64)).difficulties == 0


def make_grids() -> list[dict[str, Any]]:
    """Return the first two of three mazes of 2 x 2 cells, offered in another order."""
    sampler = GridSampler(" #.S".__getitem__, ("unreachable", "reachable"), count=2)
    ids = torch.tensor([[1, 2, 3, 2], [2, 2, 1, 3], [3, 1, 2, 2]])
    batch = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "index": torch.tensor([2, 0, 1]),
        "position_ids": torch.tensor([[4, 4, 5, 5]] * 3), "token_type_ids": torch.tensor([[7, 8, 7, 8]] * 3),
        "labels": torch.tensor([[-100, 1, -100, 1], [1, 1, -100, -100], [-100, -100, 1, 1]]),
        "difficulty": torch.tensor([[-1, 2, -1, 1], [2, 1, -1, -1], [-1, -1, 1, 2]]),
    }  # fmt: skip
    updates = torch.tensor([[1.0, 2, 3, 4], [5, 6, 1, 2], [3, 3, 3, 3]])
    trace = DepthTrace("token", updates, torch.ones(3, 4, dtype=torch.bool), DEPTH)
    sampler.update(batch, trace, torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]]))
    return sampler.grids()


def test_grids_lie_in_rows_and_columns() -> None:
    first, second = make_grids()
    assert (first["index"], second["index"]) == (0, 1)
    assert first == {
        "index": 0, "kind": "cells", "cells": [[".", "."], ["#", "S"]], "difficulty": [[2, 1], [None, None]],
        "updates": [[5, 6], [1, 2]], "label": [["reachable", "reachable"], [None, None]],
        "predicted": [["unreachable", "reachable"], [None, None]],
    }  # fmt: skip
    assert [cell.text for cell in draw_distance_cells(first)] == ["2", "1", "", "S"]
    depths = draw_depth_cells(first, DEPTH)
    assert [cell.text for cell in depths] == ["5", "6", "1", "2"]
    assert [cell.is_wrong for cell in depths] == [True, False, False, False]
    assert format_grid_caption(first) == "sequence 0: 1 of 2 labelled cells right, mean depth 3.50 over 4"


def test_files_console_report_and_figures_have_difficulty(summary: dict[str, Any], tmp_path: Path) -> None:
    write_halting_files(tmp_path, summary, [], step=3, name="inside", further_sets={"beyond": summary})
    write_grids(tmp_path, {"inside": make_grids(), "beyond": make_grids()}, DEPTH, step=3)
    files = read_run(tmp_path)
    assert files.halting["further_sets"] == {"beyond": {"difficulty": summary["difficulty"]}}
    assert [name for name, _ in get_difficulty_curves(get_difficulty_sets(files.halting), "accuracy")] == [
        "inside",
        "beyond",
    ]
    assert files.of("grids.json")["sets"]["beyond"] == make_grids()
    table = format_halting(summary, step=3)
    assert "Spearman(depth, difficulty)" in table
    assert "accuracy" in table
    page = write_report(read_report(tmp_path)).read_text(encoding="utf-8")
    for text in ("Depth and difficulty", "Accuracy by difficulty", "Spearman (depth, difficulty)",
                 "steps from the start",                 "sequence 0: 1 of 2 labelled cells right"):  # fmt: skip
        assert text in page
    assert "<script" not in page
    names = {path.name for path in draw_figures(read_report(tmp_path))}
    assert {"difficulty.png", "grids_inside.png", "grids_beyond.png"} <= names
