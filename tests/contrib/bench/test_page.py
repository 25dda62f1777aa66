"""Tables of a bench's page, and docs/results.md as derived from the stored results."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from adadepth.contrib.bench.page import (
    build_bench_sections,
    build_outcomes_table,
    build_overthinking_table,
    build_rules_table,
    format_bench,
    read_results,
    to_markdown,
)
from adadepth.contrib.bench.saved_compute import build_saved_table
from tests.scripts_support import load_script


def make_result(seed: int, score: float) -> dict[str, Any]:
    point = {
        "rule": "margin:0.5", "chosen_score": score, "score": score, "score_error": 0.01, "updates": 2.0,
        "updates_error": 0.1, "macs": 5.0,
    }  # fmt: skip
    rule = point | {
        "online": None, "permuted": 0.5, "mixture": 0.6, "spearman": 0.7, "calibration": 0.01,
        "time": {"1": 0.5, "16": 0.25, "8": 0.3},
    }  # fmt: skip
    oracle = rule | {"rule": "oracle:stays", "updates": 1.5}
    overthinking = {"step": 3, "best": 0.95, "last": 0.9, "gap": 0.05, "lost": 0.06}
    inside = {"n": 10, "readings": {"margin": [point]}, "rules": [rule, oracle], "overthinking": overthinking}
    return {
        "name": f"hops.mean.{seed}", "task": "hops", "way": "mean", "setting": [], "seed": seed, "overrides": [],
        "commit": None, "hardware": None, "seconds": 1.0, "steps": 9, "sets": {"inside": inside},
    }  # fmt: skip


RESULTS = [make_result(0, 0.8), make_result(1, 0.9)]


def test_rules_are_means_over_seeds() -> None:
    (table,) = build_rules_table("hops", "inside", RESULTS)
    row, oracle = table.rows
    assert (row["above"], oracle["above"]) == (0.5, 0.0)
    assert (row["method"], row["exit_rule"], row["seeds"]) == ("mean", "margin:0.5", 2)
    assert row["score"] == pytest.approx(0.85)
    assert row["online"] is None
    assert (row["time_1"], row["time_16"]) == (0.5, 0.25)
    assert "time_8" not in row
    names = [table.name for section in build_bench_sections(RESULTS, {}, []) for table in section.tables]
    assert names == [
        "recommendations", "comparisons", "hops_inside", "hops_inside_exit_rules", "hops_inside_overthinking",
        "conditions",
    ]  # fmt: skip
    (overthinking,) = build_overthinking_table("hops", "inside", RESULTS)
    assert [overthinking.rows[0][key] for key in ("method", "step", "lost", "seeds")] == ["mean", 3, 0.06, 2]
    page = to_markdown(RESULTS, {})
    assert "margin:0.5" in page
    # scores of .8 and .9, each with .01: the square root of (.005 + .0001) / 2
    assert "0.8500 ± 0.0505" in page
    assert "(n = 2 seeds). No task of this bench has both groups: adaptive depth and fixed depth." in page
    assert "(figures/hops.svg)" in page


def test_saved_compute_is_interpolated_for_every_seed_and_averaged() -> None:
    """Use fixed depths of 1, 2 and 4 updates with losses that fall; the margins enclose 10 to 30 % of saved compute."""
    results = [make_result(seed, 0.9) for seed in (0, 1)]
    for seed_result in results:
        readings, gain = seed_result["sets"]["inside"]["readings"], 0.2 * seed_result["seed"]
        (base,) = readings.pop("margin")
        readings["fixed"] = [base | {"macs": 10.0 * k, "score": -2.0 - 1 / k + gain} for k in (1, 2, 4)]
        readings["margin"] = [base | {"macs": compute, "score": score} for compute, score in ((20, -2.6), (36, -2.2))]
        readings["kl"] = [base | {"macs": 38.5, "score": -2.0}]
    (table,) = build_saved_table("hops", "inside", results)
    fixed, margin = table.rows
    assert [row["exit_rule"] for row in table.rows] == ["fixed", "margin"]
    # at 36 of 40: a fifth of the way from 4 to 2 updates; the loss is averaged over seeds before the exponential
    assert fixed["saved_0"] == pytest.approx(math.exp(2.25 - 0.1))
    assert fixed["saved_0.1"] == pytest.approx(math.exp(2.25 + 0.2 * 0.25 - 0.1))
    assert [margin.get(f"saved_{share}") for share in (0.05, 0.1, 0.2, 0.3)] == [
        None, *(pytest.approx(math.exp(loss)) for loss in (2.2, 2.3, 2.4))
    ]  # fmt: skip
    for seed_result in results:  # two separately trained networks of one method
        for point in seed_result["sets"]["inside"]["readings"]["margin"]:
            point["macs"] -= 1
        seed_result["setting"] = ["model.num_loops=4"]
    other = copy.deepcopy(results)
    for seed_result in other:
        seed_result["setting"] = ["model.num_loops=2"]
    assert not build_saved_table("hops", "inside", [*results, *other])


def test_comparisons_are_decided_where_a_task_has_both_groups() -> None:
    margin_results = [make_result(seed, 0.9) for seed in (0, 1)]
    fixed = copy.deepcopy(margin_results)
    for item in fixed:
        (point,) = item["sets"]["inside"]["readings"].pop("margin")
        item["sets"]["inside"]["readings"]["run"] = [point | {"macs": 8.0, "updates_error": 0.0, "chosen_score": None}]
        item |= {"way": "fixed", "name": f"hops.fixed.{item['seed']}"}
    page = to_markdown(margin_results, {})
    assert "| `hops` | `mean, margin` (train with a loss after every update; exit when the probabi" in page
    assert "The task has no method of fixed depth. |" in page
    table = build_outcomes_table([*margin_results, *fixed])
    (row,) = table.rows
    assert row["comparison"] == "adaptive depth or fixed depth"
    assert (row["first"], row["second"]) == ("mean, margin: 62.5% ± 2.2", "fixed: 100.0% ± 0.0")
    assert row["cheaper"] == "adaptive depth"
    page = to_markdown([*margin_results, *fixed], {"hops": "Labels of tokens. Each token has its own depth."})
    assert "Adaptive depth needs less compute than fixed depth on 1 of 1 tasks (hops)." in page
    assert "| Labels of tokens (`hops`) | `mean, margin` (" in page
    assert (
        "needs 62.5% ± 2.2 of the compute of full depth. The cheapest method of fixed depth (`fixed`) needs 100.0%"
        in page
    )


def test_budgets_that_cannot_be_compared_are_left_out_with_the_reason() -> None:
    results = [make_result(seed, 0.9) for seed in (0, 1)]
    for item in results:
        item["sets"]["inside"]["readings"]["budget"] = [item["sets"]["inside"]["readings"]["margin"][0]]
    reason = (
        "Set inside. Left out: mean depths that were set after training (mean). They are scored on the half of the "
        "examples on which they were not fitted. Runs of mean have no score on this half."
    )
    page = to_markdown(results, {})
    assert f"\n{reason}\n" in page
    assert "| mean | margin |" in page
    assert "| mean | budget |" not in page
    assert any(reason in section.html for section in build_bench_sections(results, {}, []))
    for item in results:
        item["sets"]["inside"]["half_readings"] = item["sets"]["inside"]["readings"]
    page = to_markdown(results, {})
    assert "Left out" not in page
    assert "| mean | budget |" in page


def test_a_task_without_compute_of_predictions_says_so() -> None:
    results = [make_result(seed, 0.9) for seed in (0, 1)]
    assert "prediction head" not in to_markdown(results, {})  # exit rules alone
    for item in results:
        readings = item["sets"]["inside"]["readings"]
        readings["run"] = [readings["margin"][0] | {"rule": None}]
    reason = (
        "Set inside. Compute of exit rules, and of fixed depths of a deeper network, includes the prediction head. "
        "Compute of runs and budgets includes it only for PonderNet, TRM, and ALBERT without ACT, because the results "
        "of mean do not have the compute of a prediction."
    )
    assert f"\n{reason}\n" in to_markdown(results, {})
    for item in results:
        item["sets"]["inside"]["readings"]["run"][0]["prediction_macs"] = 1.0
    assert "prediction head" not in to_markdown(results, {})


def test_a_task_without_a_recommendation_says_so() -> None:
    one_seed, other = make_result(0, 0.9), make_result(1, 0.9)
    other["sets"]["inside"]["readings"]["kl"] = other["sets"]["inside"]["readings"].pop("margin")
    sentence = "no method reaches the threshold of 0.8820, 98.0% of the best score, with every seed."
    assert f"| `hops` | – | {sentence} |" in to_markdown([one_seed, other], {})
    assert f"hops: {sentence}" in format_bench([one_seed, other], {})


@pytest.fixture
def results_table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_script("benchmarks/results_table.py", monkeypatch)


def test_page_and_readme_agree_with_the_stored_results(
    results_table: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load_script("benchmarks/results_page.py", monkeypatch)
    assert script.PAGE.read_text(encoding="utf-8") == script.format_page(results_table.read_table())
    readme = script.README.read_text(encoding="utf-8")
    assert script.fill_readme(readme, results_table.read_table()) == readme


@pytest.mark.slow
def test_stored_results_are_written_as_files_of_a_bench(results_table: ModuleType, tmp_path: Path) -> None:
    results_table.write_files(tmp_path)
    results = read_results(tmp_path)
    assert results == results_table.read_table()
    results_table.write_table(results, tmp_path / "again.parquet")
    assert results_table.read_table(tmp_path / "again.parquet") == results


def test_no_two_methods_of_a_task_were_the_same_training(results_table: ModuleType) -> None:
    results = results_table.read_table()
    distinct = {json.dumps([result[key] for key in ("task", "seed", "sets", "seconds")]) for result in results}
    assert len(distinct) == len(results)
