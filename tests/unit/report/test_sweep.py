"""Selection in a grid, compared with hand-made scores, and the files of its summary."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from adadepth.report.sweep import CellScores, build_grid_table, format_grid, summarise_grid, write_grid

Scores = dict[int, dict[int, float]]


def make_cell(rate: str, scores: Scores, seeds: tuple[int, ...] = (0, 1), failure: str | None = None) -> CellScores:
    return CellScores({"trainer.learning_rate": rate}, seeds, scores, failure)


def summarise(*cells: CellScores, from_epoch: int = 2, maximize: bool = True) -> dict[str, Any]:
    return summarise_grid(cells, from_epoch=from_epoch, maximize=maximize)


def get_selected(content: dict[str, Any]) -> tuple[str, int, int]:
    selected = content["chosen"]
    return selected["settings"]["trainer.learning_rate"], selected["epoch"], selected["seed"]


def test_the_best_mean_counts_and_not_the_best_run() -> None:
    content = summarise(
        make_cell("1e-5", {0: {2: 0.9, 3: 0.2}, 1: {2: 0.1, 3: 0.2}}),  # 0.9 is the best run; means 0.5 and 0.2
        make_cell("2e-5", {0: {2: 0.5, 3: 0.56}, 1: {2: 0.5, 3: 0.6}}),  # means 0.5 and 0.58
    )
    assert get_selected(content) == ("2e-5", 3, 1)
    selected = content["chosen"]
    assert (selected["mean"], selected["score"], selected["n"]) == (pytest.approx(0.58), 0.6, 2)
    assert selected["std"] == pytest.approx(0.04 / 2**0.5)  # sample deviation of two values
    assert [row["chosen"] for row in content["rows"]] == [False, False, False, True]


def test_early_epochs_do_not_compete() -> None:
    scores = {0: {1: 0.9, 2: 0.4, 3: 0.5}, 1: {1: 0.9, 2: 0.4, 3: 0.5}}
    assert get_selected(summarise(make_cell("1e-5", scores))) == ("1e-5", 3, 0)
    assert get_selected(summarise(make_cell("1e-5", scores), from_epoch=1)) == ("1e-5", 1, 0)
    assert summarise(make_cell("1e-5", scores))["rows"][0]["remark"] == "too early"


def test_the_earlier_epoch_and_then_the_first_cell_wins_among_equal_means() -> None:
    same = {0: {2: 0.5, 3: 0.5}, 1: {2: 0.5, 3: 0.5}}
    assert get_selected(summarise(make_cell("b", same), make_cell("a", same))) == ("b", 2, 0)
    assert get_selected(summarise(make_cell("b", {0: {3: 0.5}, 1: {3: 0.5}}), make_cell("a", same))) == ("a", 2, 0)


def test_a_cell_that_lacks_a_seed_is_named_and_excluded() -> None:
    content = summarise(
        make_cell("1e-5", {0: {2: 0.4}, 1: {2: 0.4}}),
        make_cell("2e-5", {0: {2: 0.9}}, failure="ValueError: loss is not finite"),
        make_cell("3e-5", {}, failure="DataError: gone"),
    )
    assert get_selected(content) == ("1e-5", 2, 0)
    assert [(row["n"], row["mean"], row["remark"]) for row in content["rows"][1:]] == [
        (1, 0.9, "1 of 2 seeds"), (0, None, "0 of 2 seeds"),
    ]  # fmt: skip
    assert [(one["settings"]["trainer.learning_rate"], one["reason"]) for one in content["left_out"]] == [
        ("2e-5", "ValueError: loss is not finite"), ("3e-5", "DataError: gone"),
    ]  # fmt: skip


def test_an_epoch_that_some_seed_lacks_does_not_compete() -> None:
    content = summarise(make_cell("1e-5", {0: {2: 0.3, 3: 0.9}, 1: {2: 0.3}}))
    assert get_selected(content) == ("1e-5", 2, 0)
    assert content["left_out"] == []


def test_one_seed_has_no_spread() -> None:
    content = summarise(make_cell("1e-5", {7: {2: 0.3, 3: 0.4}}, seeds=(7,)))
    assert get_selected(content) == ("1e-5", 3, 7)
    assert content["chosen"]["std"] is None
    assert "of one seed" in format_grid(add_names(content))


def test_losses_are_minimised() -> None:
    content = summarise(
        make_cell("a", {0: {2: 0.3}, 1: {2: 0.5}}), make_cell("b", {0: {2: 0.7}, 1: {2: 0.2}}), maximize=False
    )
    assert get_selected(content) == ("a", 2, 0)


def test_nothing_is_selected_without_a_complete_cell() -> None:
    content = summarise(make_cell("a", {0: {2: 0.3}}), make_cell("b", {}))
    assert content["chosen"] is None
    assert "no selection: no epoch from 2 on has scores of all seeds" in format_grid(add_names(content))


def add_names(content: dict[str, Any]) -> dict[str, Any]:
    return {"name": "act_cola", "metric": "eval/score", "from_epoch": 2, **content}


def test_the_summary_is_text_csv_latex_json_and_a_page(tmp_path: Path) -> None:
    scores = {0: {1: 0.1, 2: 0.25}, 1: {1: 0.2, 2: 0.35}}
    content = add_names(summarise(make_cell("1e-5", scores), make_cell("2e-5", {}, failure="ValueError: <nan>")))
    content["chosen"] |= {
        "run": "runs/r",
        "checkpoint": "runs/r/c",
        "evaluation": "chosen/e",
        "submissions": ["CoLA.tsv"],
    }
    page = write_grid(tmp_path, content).read_text()
    assert json.loads((tmp_path / "choice.json").read_text()) == content
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
    text = format_grid(content)
    assert "chosen: trainer.learning_rate=1e-5, epoch 2: eval/score 0.3000 +- 0.0707 over 2 seeds" in text
    assert "left out: trainer.learning_rate=2e-5: ValueError: <nan>" in text
    assert len(build_grid_table(content).rows) == 3
