"""Summary of several seeds: means, sample deviations, and its page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadepth.report.pages import write_report
from adadepth.report.run_files import SEEDS, write_json
from adadepth.report.seeds import format_seeds, select_headline_metrics, summarise_seeds
from tests.pages_support import Page, read_report

RUNS = [
    (3, {"eval/score": 0.80, "eval/loss": 0.5, "eval/step_1/score": 0.6, "halting/exit_step/mean": 2.0, "note": "x"}),
    (4, {"eval/score": 0.90, "eval/loss": float("nan"), "eval/step_1/score": 0.5, "halting/exit_step/mean": 3.0}),
    (5, {"eval/score": 0.85, "eval/step_1/score": 0.7, "halting/exit_step/mean": 2.5}),
]


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8))
def test_mean_and_sample_deviation_equal_numpy(values: list[float]) -> None:
    summary = summarise_seeds([(seed, {"eval/score": value}) for seed, value in enumerate(values)])
    score = summary["metrics"]["eval/score"]
    assert score["mean"] == pytest.approx(np.mean(values), abs=1e-9)
    assert score["std"] == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    assert score["values"] == {str(seed): value for seed, value in enumerate(values)}
    assert (summary["n"], score["n"]) == (len(values), len(values))


def test_a_metric_that_a_run_lacks_has_the_smaller_n() -> None:
    loss = summarise_seeds(RUNS)["metrics"]["eval/loss"]
    assert loss == {"n": 1, "mean": 0.5, "values": {"3": 0.5}}
    assert "note" not in summarise_seeds(RUNS)["metrics"]


def test_one_seed_has_no_deviation() -> None:
    summary = summarise_seeds(RUNS[:1])
    assert all("std" not in metric for metric in summary["metrics"].values())
    assert format_seeds(summary).startswith("1 seed: 3")
    line = next(line for line in format_seeds(summary).splitlines() if line.startswith("eval/score"))
    assert line.split()[2] == "-"


def test_the_table_shows_headline_metrics_in_the_order_of_seeds() -> None:
    table = format_seeds(summarise_seeds(RUNS))
    assert table.isascii()
    assert table.startswith("3 seeds: 3, 4, 5")
    line = next(line for line in table.splitlines() if line.startswith("eval/score"))
    assert line.split() == ["eval/score", "0.8500", "0.0500", "3", "0.8000", "0.9000", "0.8500"]
    assert next(line for line in table.splitlines() if line.startswith("eval/loss")).split()[-3:] == [
        "0.5000",
        "-",
        "-",
    ]
    assert "step_1" not in table
    assert "halting/exit_step/mean" in select_headline_metrics(summarise_seeds(RUNS))


def test_a_directory_of_seeds_has_a_page(tmp_path: Path) -> None:
    summary = summarise_seeds(RUNS)
    write_json(tmp_path / SEEDS, summary)
    assert json.loads((tmp_path / "seeds.json").read_text(encoding="utf-8")) == summary
    (tmp_path / "run.json").write_text('{"config_name": "ponder_rte", "seed": 3}', encoding="utf-8")
    page = Page(write_report(read_report(tmp_path)))
    assert "3 runs that differ in the seed" in page.text
    assert "3, 4, 5 (3 seeds)" in page.text
    assert "ponder_rte" in page.text
    for value in ("0.8500", "0.0500", "0.9000"):
        assert value in page.text
    assert "Halting distribution" not in page.text
    assert "not available: there is no halting.json" not in page.text
    assert all("scope" in attributes for attributes in page.of("th"))


def test_infinite_values_are_excluded() -> None:
    summary = summarise_seeds([(0, {"eval/loss": math.inf}), (1, {"eval/loss": -math.inf})])
    assert summary["metrics"] == {}
