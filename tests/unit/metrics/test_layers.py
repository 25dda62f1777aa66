"""Figures of a distribution over layers, compared with numpy, scipy and closed forms."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from adadepth.halting.trace import DepthTrace
from adadepth.metrics.depth_statistics import HaltingStatistics, flatten
from adadepth.metrics.layer_weights import collect_seed_weights, compute_seed_distance, describe_layers
from adadepth.report.layers import get_layer_history
from adadepth.report.run_files import read_run
from adadepth.report.seeds import select_headline_metrics, summarise_seeds
from tests.unit.report.synthetic_layers import FACTS, evaluate, make_layer_run, make_learned_weights

scores = st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0]), min_size=2, max_size=30).filter(any)


@given(scores)
def test_figures_agree_with_scipy(values: list[float]) -> None:
    weights = np.array(values) / sum(values)
    figures = describe_layers(weights.tolist())
    assert figures["weights"] == weights.tolist()
    assert figures["entropy"] == pytest.approx(entropy(weights), abs=1e-9)
    assert figures["effective_layers"] == pytest.approx(math.exp(entropy(weights)))
    assert figures["expected_depth"] == pytest.approx(weights @ np.arange(len(weights)))
    assert figures["deepest"] == np.flatnonzero(weights).max()
    assert figures["active"] == np.count_nonzero(weights)


def test_statistics_give_the_weights_of_the_trace_exactly() -> None:
    weights = make_learned_weights(7)
    summary = evaluate(weights, batches=5)
    assert summary["layers"] == describe_layers(weights.double().tolist()) | FACTS
    assert summary["unit"] == "task"
    assert summary["classes"].keys() == {"all"}
    assert summary["cost"]["layer_ratio"] == 7 / summary["layers"]["deepest"]
    assert summary["missing"] == {}


def make_architecture_trace(weights: torch.Tensor | None) -> DepthTrace:
    return DepthTrace("task", torch.full((2,), 3.0), torch.ones(2, dtype=torch.bool), 3, layer_weights=weights)


def test_sums_of_several_processes_give_the_same_weights() -> None:
    weights = make_learned_weights(3)
    parts = [HaltingStatistics(3, ("all",), "cpu") for _ in range(3)]
    for part in parts[:2]:  # the last one has no example
        part.update(make_architecture_trace(weights), {"all": torch.ones(2, dtype=torch.bool)})
    for mine, *rest in zip(*(part.tensors() for part in parts), strict=True):
        mine += sum(rest)
    assert parts[0].summary()["layers"]["weights"] == weights.tolist()


@pytest.mark.parametrize(("weights", "reason"), [(None, None), (torch.full((4,), torch.nan), "not finite")])
def test_missing_weights_are_no_figures(weights: torch.Tensor | None, reason: str | None) -> None:
    statistics = HaltingStatistics(3, ("all",), "cpu")
    statistics.update(make_architecture_trace(weights), {"all": torch.ones(2, dtype=torch.bool)})
    summary = statistics.summary()
    assert "layers" not in summary
    assert summary["missing"].get("halting/layers") == reason
    assert not any("layers" in name for name in flatten(summary))


def test_flat_metrics_have_names_of_single_layers() -> None:
    summary = evaluate(make_learned_weights(6))
    flat, layers = flatten(summary), summary["layers"]
    assert flat["halting/layers/weights"] == layers["weights"]
    assert [flat[f"halting/layers/weight/{state}"] for state in range(7)] == layers["weights"]
    for name in ("entropy", "effective_layers", "expected_depth", "deepest", "active"):
        assert flat[f"halting/layers/{name}"] == layers[name]
    assert flat["cost/added_parameters"] == FACTS["added_parameters"]


def test_the_history_has_every_evaluation(tmp_path: Path) -> None:
    make_layer_run(tmp_path, blocks=6, evaluations=4)
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 999, "train/loss": 0.1}) + "\n")
    history = get_layer_history(read_run(tmp_path).metrics)
    assert [step for step, _ in history] == [0, 50, 100, 150]
    for (_, layers), progress in zip(history, (0, 1 / 3, 2 / 3, 1), strict=True):
        assert layers["weights"] == pytest.approx(make_learned_weights(6, progress).tolist())
    assert history[0][1]["entropy"] == pytest.approx(math.log(7))


def make_runs(distributions: list[list[float]]) -> list[tuple[int, dict[str, Any]]]:
    return [
        (seed, {"eval/score": 0.5} | {f"halting/layers/weight/{state}": weight for state, weight in enumerate(weights)})
        for seed, weights in enumerate(distributions)
    ]


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=12, max_size=12), min_size=2, max_size=5))
def test_distance_over_seeds_agrees_with_a_loop(values: list[list[float]]) -> None:
    distributions = [(np.array(row) / sum(row)).tolist() for row in values]
    distance = summarise_seeds(make_runs(distributions))["layer_distance"]
    pairs = [np.abs(np.array(one) - np.array(other)).sum() / 2 for one, other in combinations(distributions, 2)]
    assert distance["mean"] == pytest.approx(np.mean(pairs), abs=1e-12)
    assert distance["max"] == pytest.approx(np.max(pairs), abs=1e-12)
    assert distance["pairs"] == len(pairs)


def test_states_are_in_order_and_disjoint_distributions_have_distance_one() -> None:
    one_hot = np.eye(12)[[2, 11]].tolist()
    metrics = summarise_seeds(make_runs(one_hot))["metrics"]
    weights = collect_seed_weights(metrics)
    assert list(weights) == list(range(12))
    assert compute_seed_distance(weights) == {"mean": 1.0, "max": 1.0, "pairs": 1}


def test_no_distance_without_two_distributions() -> None:
    assert "layer_distance" not in summarise_seeds(make_runs([[0.5, 0.5]]))
    assert "layer_distance" not in summarise_seeds([(0, {"eval/score": 1.0}), (1, {"eval/score": 0.5})])
    different_bases = summarise_seeds(make_runs([[0.5, 0.5], [0.2, 0.3, 0.5]]))
    assert "layer_distance" not in different_bases


def test_headline_metrics_name_the_distribution_in_three_numbers() -> None:
    runs = [(seed, flatten(evaluate(make_learned_weights(6, progress)))) for seed, progress in ((0, 1.0), (1, 0.8))]
    names = [name for name in select_headline_metrics(summarise_seeds(runs)) if "layers" in name]
    assert names == ["halting/layers/entropy", "halting/layers/expected_depth", "halting/layers/deepest"]
