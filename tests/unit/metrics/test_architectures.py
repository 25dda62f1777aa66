"""Figures of an architecture search, compared with scipy, loops and closed forms."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from adadepth.metrics.architectures import (
    architecture_history,
    architectures_over_seeds,
    block_metrics,
    compared_rows,
    describe_architecture,
    flatten_architecture,
    flatten_search,
    is_fixed,
    operations_by_third,
    quality_points,
)
from adadepth.report.run_files import ARCHITECTURES, METRICS, read_run, write_json
from adadepth.report.seeds import select_headline_metrics, summarise_seeds
from tests.unit.report.synthetic_architectures import (
    SHAPES,
    make_comparison,
    make_gate_probabilities,
    make_search_evaluation,
    make_search_run,
)

rows = st.lists(st.floats(0.001, 1), min_size=3, max_size=3).map(lambda row: [share / sum(row) for share in row])


@given(st.lists(rows, min_size=1, max_size=33))
def test_figures_agree_with_scipy(probabilities: list[list[float]]) -> None:
    table, figures = np.array(probabilities), describe_architecture(probabilities, 0.5)
    assert figures["string"] == "".join("sf-"[choice] for choice in table.argmax(axis=1))
    assert figures["entropy"] == pytest.approx(entropy(table, axis=1).tolist(), abs=1e-9)
    assert figures["mean_entropy"] == pytest.approx(entropy(table, axis=1).mean(), abs=1e-9)
    assert figures["expected_blocks"] == pytest.approx(table[:, :2].sum())
    assert (figures["blocks"], figures["temperature"], is_fixed(figures)) == (len(table), 0.5, False)


def test_even_gates_choose_the_first_operation_and_a_fixed_network_has_no_entropy() -> None:
    even = describe_architecture([[1 / 3] * 3] * 4, 1.0)
    assert even["string"] == "ssss"
    assert even["mean_entropy"] == pytest.approx(math.log(3))
    assert describe_architecture([[0.2, 0.4, 0.4]], 1.0)["string"] == "f"
    fixed = describe_architecture([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert (fixed["string"], fixed["entropy"], fixed["expected_blocks"], is_fixed(fixed)) == ("s-", [0, 0], 1, True)
    assert "search/temperature" not in flatten_architecture(fixed)


@pytest.mark.slow
@given(st.text("sf-", min_size=1, max_size=40))
def test_thirds_have_nearly_equal_parts_and_every_block_once(architecture: str) -> None:
    thirds = operations_by_third(architecture)
    sizes = [sum(third.values()) for third in thirds]
    assert max(sizes) - min(sizes) <= 1
    parts = ["".join(architecture[start:end]) for start, end in zip(np.cumsum([0, *sizes]), np.cumsum(sizes))]  # noqa: B905
    for third, part in zip(thirds, parts, strict=True):
        assert list(third.values()) == [part.count(letter) for letter in "sf-"]


def test_the_published_network_has_no_attention_in_its_last_third() -> None:
    thirds = operations_by_third("sfff" * 6 + "f" * 8)
    assert [third["attention"] for third in thirds] == [3, 3, 0]


def test_history_is_read_from_the_lines_that_hold_probabilities(tmp_path: Path) -> None:
    make_search_run(tmp_path, blocks=5, evaluations=4)
    with (tmp_path / METRICS).open("a", encoding="utf-8") as file:
        other = flatten_architecture(describe_architecture(make_gate_probabilities(5), 0.1))
        for line in (
            {"step": 900, "train/loss": 0.1},
            {"step": 901, **other, "search/identity": ["nan"] * 5},
            {"step": 902, **other, "search/identity": [0.1]},
        ):
            file.write(json.dumps(line) + "\n")
    history = architecture_history(read_run(tmp_path).metrics)
    assert [step for step, _ in history] == [0, 50, 100, 150]
    for (_, architecture), progress in zip(history, (0, 1 / 3, 2 / 3, 1), strict=True):
        assert architecture == describe_architecture(make_gate_probabilities(5, progress), 0.1**progress)


def test_history_of_another_number_of_blocks_is_left_out() -> None:
    lines = [
        {"step": step, **flatten_architecture(describe_architecture(make_gate_probabilities(blocks), 1.0))}
        for step, blocks in ((1, 4), (2, 6), (3, 6))
    ]
    assert [step for step, _ in architecture_history(lines)] == [2, 3]
    assert architecture_history([]) == []


def test_flat_metrics_have_names_of_single_figures() -> None:
    content = make_search_evaluation(6, 0.5)
    flat, described = flatten_search(content), content["architecture"]
    assert flat["search/architecture"] == described["string"]
    assert flat["search/feed_forward"] == [row[1] for row in described["probabilities"]]
    assert flat["search/block/6/identity"] == described["probabilities"][5][2]
    assert flat["search/thirds/3/attention"] == described["thirds"][2]["attention"]
    assert flat["cost/executed_over_full"] == 2.0
    assert {type(value) for value in flat.values()} == {str, list, float, int}


# ---- seeds


@given(st.lists(st.text("sf-", min_size=7, max_size=7), min_size=2, max_size=5))
def test_agreement_over_seeds_equals_a_loop(strings: list[str]) -> None:
    runs = []
    for seed, string in enumerate(strings):
        probabilities = [[0.8 if letter == of else 0.1 for of in "sf-"] for letter in string]
        runs.append((seed, {"eval/loss": 1.0} | block_metrics(describe_architecture(probabilities, 0.1))))
    agreement = summarise_seeds(runs)["architecture_agreement"]
    shares = [np.mean([a == b for a, b in zip(*pair, strict=True)]) for pair in combinations(strings, 2)]
    assert agreement["mean"] == pytest.approx(np.mean(shares))
    assert (agreement["min"], agreement["pairs"]) == (pytest.approx(min(shares)), len(shares))
    assert agreement["strings"] == {str(seed): string for seed, string in enumerate(strings)}
    assert agreement["thirds"][0]["attention"] == sum(string[:3].count("s") for string in strings)
    assert sum(sum(third.values()) for third in agreement["thirds"]) == 7 * len(strings)


def test_no_agreement_without_two_searches_of_as_many_blocks() -> None:
    metrics = [block_metrics(describe_architecture(make_gate_probabilities(blocks), 1.0)) for blocks in (12, 12, 5)]
    assert "architecture_agreement" not in summarise_seeds([(0, metrics[0])])
    assert "architecture_agreement" not in summarise_seeds([(0, metrics[0]), (1, {"eval/loss": 1.0})])
    assert "architecture_agreement" not in summarise_seeds([(0, metrics[0]), (1, metrics[2])])
    summary = summarise_seeds([(0, metrics[0]), (1, metrics[1])])
    assert summary["architecture_agreement"]["mean"] == 1
    assert len(architectures_over_seeds(summary["metrics"])["0"]) == 12


def test_headline_metrics_leave_single_blocks_out() -> None:
    other_metrics = {
        "eval/perplexity": 50.0,
        "search/argmax/perplexity": 61.0,
        "search/compare/alternating/perplexity": 52.0,
    }
    runs = [(seed, flatten_search(make_search_evaluation(6, 1.0, seed)) | other_metrics) for seed in range(2)]
    names = select_headline_metrics(summarise_seeds(runs))
    assert not any("block/" in name or "thirds" in name for name in names)
    assert {"search/mean_entropy", *other_metrics} <= names.keys()


# ---- comparison


def test_costs_are_shares_of_the_reference_if_measured() -> None:
    comparison = make_comparison()
    rows = {row["label"]: row for row in compared_rows(comparison)}
    assert list(rows) == ["derived (from scratch)", "derived (not retrained)", "alternating", "paper_rule", "random"]
    far = SHAPES[1]["name"]
    assert rows["derived (from scratch)"]["costs"][far]["macs_share"] == pytest.approx(5.1 / 9.9)
    assert rows["random"]["costs"][far]["median_share"] == pytest.approx(5.0 / 9.1)
    assert rows["alternating"]["costs"][far]["median_share"] == 1
    assert rows["paper_rule"]["costs"][far] == {"macs": 4.0e6, "macs_share": pytest.approx(4.0 / 9.9)}
    assert rows["random"]["counts"] == [2, 4, 1]


def test_without_the_reference_there_are_no_shares() -> None:
    comparison = make_comparison() | {"reference": "sandwich"}
    assert not any(
        key.endswith("_share") for row in compared_rows(comparison) for key in row["costs"][SHAPES[0]["name"]]
    )


def test_points_of_retrained_networks_have_times_or_else_macs() -> None:
    comparison = make_comparison()
    timed = quality_points(comparison)
    assert [title for title, _, _ in timed] == [f"held-out text, {shape['name']}" for shape in SHAPES]
    assert [(x, y, row["label"]) for x, y, row in timed[0][2]] == [
        (pytest.approx(1.9), 49.2, "derived (from scratch)"),
        (pytest.approx(2.2), 50.1, "alternating"),
    ]
    for row in comparison["rows"]:
        row["seconds"] = {}
    _, axis, points = quality_points(comparison)[1]
    assert "multiply-accumulates" in axis
    assert [(x, y) for x, y, _ in points] == [(5.1e6, 49.2), (9.9e6, 50.1), (4.0e6, 52.8)]


def test_the_written_comparison_is_read_back(tmp_path: Path) -> None:
    comparison = make_comparison()
    write_json(tmp_path / ARCHITECTURES, comparison)
    assert read_run(tmp_path).of("architectures.json") == comparison
