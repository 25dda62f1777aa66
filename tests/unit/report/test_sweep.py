"""The choice in a grid against hand-made scores, and the files of its summary."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from adadepth.report.sweep import CellScores, build_grid_table, format_grid, summarise_grid, write_grid

Scores = dict[int, dict[int, float]]


def cell(rate: str, scores: Scores, seeds: tuple[int, ...] = (0, 1), failure: str | None = None) -> CellScores:
    return CellScores({"trainer.learning_rate": rate}, seeds, scores, failure)


def summary(*cells: CellScores, from_epoch: int = 2, maximize: bool = True) -> dict[str, Any]:
    return summarise_grid(cells, from_epoch=from_epoch, maximize=maximize)


def place(found: dict[str, Any]) -> tuple[str, int, int]:
    chosen = found["chosen"]
    return chosen["settings"]["trainer.learning_rate"], chosen["epoch"], chosen["seed"]


def test_the_best_mean_counts_and_not_the_best_run() -> None:
    found = summary(
        cell("1e-5", {0: {2: 0.9, 3: 0.2}, 1: {2: 0.1, 3: 0.2}}),  # 0.9 is the best run; means 0.5 and 0.2
        cell("2e-5", {0: {2: 0.5, 3: 0.56}, 1: {2: 0.5, 3: 0.6}}),  # means 0.5 and 0.58
    )
    assert place(found) == ("2e-5", 3, 1)
    chosen = found["chosen"]
    assert (chosen["mean"], chosen["score"], chosen["n"]) == (pytest.approx(0.58), 0.6, 2)
    assert chosen["std"] == pytest.approx(0.04 / 2**0.5)  # sample deviation of two values
    assert [row["chosen"] for row in found["rows"]] == [False, False, False, True]


def test_early_epochs_do_not_compete() -> None:
    scores = {0: {1: 0.9, 2: 0.4, 3: 0.5}, 1: {1: 0.9, 2: 0.4, 3: 0.5}}
    assert place(summary(cell("1e-5", scores))) == ("1e-5", 3, 0)
    assert place(summary(cell("1e-5", scores), from_epoch=1)) == ("1e-5", 1, 0)
    assert summary(cell("1e-5", scores))["rows"][0]["remark"] == "too early"


def test_of_equal_means_the_earlier_epoch_and_then_the_first_cell_counts() -> None:
    same = {0: {2: 0.5, 3: 0.5}, 1: {2: 0.5, 3: 0.5}}
    assert place(summary(cell("b", same), cell("a", same))) == ("b", 2, 0)
    assert place(summary(cell("b", {0: {3: 0.5}, 1: {3: 0.5}}), cell("a", same))) == ("a", 2, 0)


def test_a_cell_that_lacks_a_seed_is_named_and_left_out() -> None:
    found = summary(
        cell("1e-5", {0: {2: 0.4}, 1: {2: 0.4}}),
        cell("2e-5", {0: {2: 0.9}}, failure="ValueError: loss is not finite"),
        cell("3e-5", {}, failure="DataError: gone"),
    )
    assert place(found) == ("1e-5", 2, 0)
    assert [(row["n"], row["mean"], row["remark"]) for row in found["rows"][1:]] == [
        (1, 0.9, "1 of 2 seeds"), (0, None, "0 of 2 seeds"),
    ]  # fmt: skip
    assert [(one["settings"]["trainer.learning_rate"], one["reason"]) for one in found["left_out"]] == [
        ("2e-5", "ValueError: loss is not finite"), ("3e-5", "DataError: gone"),
    ]  # fmt: skip


def test_an_epoch_that_one_seed_stopped_before_does_not_compete() -> None:
    found = summary(cell("1e-5", {0: {2: 0.3, 3: 0.9}, 1: {2: 0.3}}))
    assert place(found) == ("1e-5", 2, 0)
    assert found["left_out"] == []


def test_one_seed_has_no_spread() -> None:
    found = summary(cell("1e-5", {7: {2: 0.3, 3: 0.4}}, seeds=(7,)))
    assert place(found) == ("1e-5", 3, 7)
    assert found["chosen"]["std"] is None
    assert "of one seed" in format_grid(named(found))


def test_losses_are_minimised() -> None:
    found = summary(cell("a", {0: {2: 0.3}, 1: {2: 0.5}}), cell("b", {0: {2: 0.7}, 1: {2: 0.2}}), maximize=False)
    assert place(found) == ("a", 2, 0)


def test_without_a_complete_cell_nothing_is_chosen() -> None:
    found = summary(cell("a", {0: {2: 0.3}}), cell("b", {}))
    assert found["chosen"] is None
    assert "no selection: no epoch from 2 on has scores of all seeds" in format_grid(named(found))


def named(found: dict[str, Any]) -> dict[str, Any]:
    return {"name": "act_cola", "metric": "eval/score", "from_epoch": 2, **found}


def test_the_summary_is_text_csv_latex_json_and_a_page(tmp_path: Path) -> None:
    scores = {0: {1: 0.1, 2: 0.25}, 1: {1: 0.2, 2: 0.35}}
    found = named(summary(cell("1e-5", scores), cell("2e-5", {}, failure="ValueError: <nan>")))
    found["chosen"] |= {
        "run": "runs/r",
        "checkpoint": "runs/r/c",
        "evaluation": "chosen/e",
        "submissions": ["CoLA.tsv"],
    }
    page = write_grid(tmp_path, found).read_text()
    assert json.loads((tmp_path / "choice.json").read_text()) == found
    with (tmp_path / "tables" / "grid.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["trainer.learning_rate"], row["epoch"], row["n"], row["remark"]) for row in rows] == [
        ("1e-5", "1", "2", "too early"), ("1e-5", "2", "2", "chosen"), ("2e-5", "", "0", "0 of 2 seeds"),
    ]  # fmt: skip
    assert float(rows[1]["mean"]) == pytest.approx(0.3)
    assert (float(rows[1]["seed_0"]), float(rows[1]["seed_1"])) == (0.25, 0.35)
    assert (
        r"1e-5 & 2 & 0.3000 & 0.0707 & 2 & 0.2500 & 0.3500 & chosen \\"
        in (tmp_path / "tables" / "grid.tex").read_text()
    )
    assert 'href="submission/CoLA.tsv"' in page
    assert "ValueError: &lt;nan&gt;" in page
    assert "0.0707" in page
    told = format_grid(found)
    assert "chosen: trainer.learning_rate=1e-5, epoch 2: eval/score 0.3000 +- 0.0707 over 2 seeds" in told
    assert "left out: trainer.learning_rate=2e-5: ValueError: <nan>" in told
    assert len(build_grid_table(found).rows) == 3
