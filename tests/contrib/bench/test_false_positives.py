"""False positives of the bench: equal methods, drawn at random, that its functions call different."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adadepth.contrib.bench.measures import (
    Candidates,
    Comparison,
    HaltingMethod,
    compute_threshold,
    evaluate_comparison,
    find_requirements,
    measure_candidates,
    recommend_method,
)

DEPTHS = np.arange(1, 9)
# Rate of change of the score with depth: the methods reach the threshold between depths 4 and 8.
CURVES = {"flat": 0.45, "steep": 0.9}


def draw_methods(generator: np.random.Generator, seeds: int, methods: int, kind: str) -> Candidates:
    """Draw methods of one distribution: runs with one point of random compute, or fixed depths with random scores."""
    points: dict[HaltingMethod, dict[int, list[dict[str, Any]]]] = {}
    for number in range(methods):
        by_seed = points[HaltingMethod(str(number), "run")] = {}
        for seed in range(seeds):
            if kind == "runs":
                by_seed[seed] = [make_point(generator.normal(100.0, 5.0), 0.99, 0.01)]
            else:
                scores = 1.0 - 0.8 * np.exp(-CURVES[kind] * DEPTHS) + generator.normal(0.0, 0.01)
                scores += generator.normal(0.0, 0.004, len(DEPTHS))
                by_seed[seed] = [make_point(10.0 * k, score, 0.0) for k, score in zip(DEPTHS, scores, strict=True)]
    return measure_candidates(points, find_requirements(points, compute_threshold(points, 0.98)))


def make_point(compute: float, score: float, error: float) -> dict[str, Any]:
    return {
        "rule": None, "setting": (), "compute": float(compute), "score": float(score), "updates": compute / 10,
        "updates_error": error, "score_error": 0.004,
    }  # fmt: skip


def measure_false_positives(kind: str, seeds: int, methods: int, draws: int) -> tuple[float, float]:
    """Return how often some equal method is called different: from the recommended one, and of two equal groups."""
    generator = np.random.default_rng(methods)
    halves = Comparison("", "", "", lambda m: int(m.name) < methods / 2, "", lambda m: int(m.name) >= methods / 2)
    recommendations = comparisons = 0
    for _ in range(draws):
        candidates = draw_methods(generator, seeds, methods, kind)
        recommendation = recommend_method(candidates)
        result = evaluate_comparison(halves, candidates)
        recommendations += recommendation is not None and len(recommendation.ties) < methods - 1
        comparisons += result is not None and result.significantly_cheaper is not None
    return recommendations / draws, comparisons / draws


def check_at_most_5_percent(rates: tuple[float, float], draws: int) -> None:
    """Check that rates are at most 5 %, with three standard errors of such a share."""
    assert max(rates) <= 0.05 + 3 * (0.05 * 0.95 / draws) ** 0.5, rates


@pytest.mark.parametrize("kind", ["runs", *CURVES])
def test_equal_methods_are_seldom_called_different(kind: str) -> None:
    check_at_most_5_percent(measure_false_positives(kind, seeds=3, methods=4, draws=200), 200)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["runs", *CURVES])
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("methods", [2, 4, 8, 16])
def test_equal_methods_are_called_different_in_at_most_5_percent_of_draws(kind: str, seeds: int, methods: int) -> None:
    check_at_most_5_percent(measure_false_positives(kind, seeds, methods, draws=2000), 2000)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(12, 4), (15, 1), (1, 15)])
def test_a_larger_group_is_not_better_by_chance(first: int, second: int) -> None:
    generator, draws, wrong = np.random.default_rng(0), 2000, 0
    groups = Comparison("", "", "", lambda m: int(m.name) < first, "", lambda m: int(m.name) >= first)
    for _ in range(draws):
        result = evaluate_comparison(groups, draw_methods(generator, 3, first + second, "runs"))
        wrong += result is not None and result.significantly_cheaper is not None
    check_at_most_5_percent((wrong / draws, 0.0), draws)


def test_different_methods_are_called_different() -> None:
    """Check that differences are found: a rule that never finds one would pass the tests above."""
    points = {
        HaltingMethod(name, "run"): {seed: [make_point(mean + seed, 0.99, 0.01)] for seed in range(3)}
        for name, mean in (("0", 100.0), ("1", 130.0), ("2", 160.0))
    }
    recommendation = recommend_method(measure_candidates(points, find_requirements(points, 0.9)))
    assert recommendation == (HaltingMethod("0", "run"), [])
