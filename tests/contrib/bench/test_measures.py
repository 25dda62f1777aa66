"""Recommendations of a bench, computed by hand from a few points."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from adadepth.contrib.bench.comparisons import format_requirement
from adadepth.contrib.bench.measures import (
    BudgetScores,
    Candidate,
    Comparison,
    HaltingMethod,
    OperatingPoints,
    Recommendation,
    collect_points,
    compute_best_score,
    evaluate_comparison,
    find_budget_scores,
    find_requirements,
    find_uncounted_predictions,
    measure_candidates,
    recommend_method,
    select_equal_compute,
    select_equal_steps,
)
from adadepth.metrics.significance import SeedMean, average_over_seeds


def make_point(macs: float, score: float, chosen_score: float | None = None, rule: str | None = None) -> dict[str, Any]:
    return {
        "rule": rule, "score": score, "chosen_score": chosen_score, "updates": macs / 10, "macs": macs,
        "updates_error": 0.1, "score_error": 0.01,
    }  # fmt: skip


def make_entry(method: str, seed: int, readings: dict[str, Any], setting: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"way": method, "seed": seed, "setting": list(setting), "sets": {"inside": {"readings": readings}}}


DEPTHS = {k: {"run": [make_point(10.0 * k, 0.5 + 0.1 * k)]} for k in (1, 4)}
RESULTS = [
    *(make_entry("fixed", seed, DEPTHS[k], (f"depth={k}",)) for seed in (0, 1) for k in DEPTHS),
    make_entry("loops", 0, {"margin": [make_point(12, 0.86, 0.91, "margin:0.1"),
                                       make_point(16, 0.9, 0.9, "margin:0.5")]}),
    make_entry("loops", 1, {"margin": [make_point(12, 0.8, 0.8, "margin:0.1"),
                                       make_point(18, 0.92, 0.91, "margin:0.5")]}),
]  # fmt: skip


def test_settings_are_selected_on_one_half_and_estimated_on_the_other() -> None:
    points = collect_points(RESULTS, "inside")
    assert compute_best_score(points) == pytest.approx((0.91 + 0.91) / 2)
    needs = find_requirements(points, 0.9)
    margin = needs[HaltingMethod("loops", "margin")]
    assert margin is not None
    assert margin["settings"] == {0: "margin:0.1", 1: "margin:0.5"}
    # With seed 0 the cheaper point reaches the threshold on the selection half, though not on the other half.
    # Between .8 at 12 and .91 at 18 multiply-accumulates, a random mixture of both has .9 at 12 + 6 * 10 / 11.
    needed = 12 + 6 * 10 / 11
    assert margin["compute"].mean == pytest.approx((12 + needed) / 2)
    assert margin["score"].mean == pytest.approx((0.86 + 0.8 + 0.12 * 10 / 11) / 2)
    # two seeds, each with 0.1 of an update of 10 multiply-accumulates
    assert margin["compute"].error == pytest.approx(math.sqrt(((needed - 12) ** 2 / 2 + 1.0) / 2))
    fixed = needs[HaltingMethod("fixed", "run")]
    assert fixed is not None
    assert fixed["settings"] == {0: "depth=4", 1: "depth=4"}
    # 12 and 17.5 are not significantly less than 40 with two seeds: t is 9.1 with 1.2 degrees of freedom.
    assert recommend_method(measure_candidates(points, find_requirements(points, 0.9))) == (
        HaltingMethod("loops", "margin"),
        [HaltingMethod("fixed", "run")],
    )


def test_interpolated_networks_and_scores_below_the_threshold_are_marked() -> None:
    needs = find_requirements(collect_points(RESULTS, "inside"), 0.8)
    fixed, margin = needs[HaltingMethod("fixed", "run")], needs[HaltingMethod("loops", "margin")]
    assert fixed is not None
    assert margin is not None
    # .8 lies between the networks of depth 1 and 4, with scores .6 and .9. Exit rules belong to one network.
    assert (fixed["is_between_networks"], fixed["is_below"]) == (True, False)
    assert fixed["compute"].mean == pytest.approx(30.0)
    assert format_requirement(fixed, 40.0) == "≈ 75.0% ± 1.8"
    assert (margin["is_between_networks"], margin["is_below"]) == (False, False)
    low = find_requirements(collect_points(RESULTS, "inside"), 0.9)[HaltingMethod("loops", "margin")]
    assert low is not None
    assert (low["is_between_networks"], low["is_below"]) == (False, True)
    assert format_requirement(low, 40.0).endswith("†")
    reached = find_requirements(collect_points(RESULTS, "inside"), 0.9)[HaltingMethod("fixed", "run")]
    assert reached is not None
    assert not reached["is_between_networks"], "the network of depth 4 reaches it"


def recommend_for_threshold(points: OperatingPoints, threshold: float) -> Recommendation | None:
    return recommend_method(measure_candidates(points, find_requirements(points, threshold)))


def test_a_difference_within_its_error_is_not_significant() -> None:
    needs = find_requirements(
        collect_points([*RESULTS, make_entry("near", 0, {"run": [make_point(15.5, 0.95)]})], "inside"), 0.9
    )
    assert needs[HaltingMethod("near", "run")] is None  # seed 1 is missing
    both = [make_entry("near", seed, {"run": [make_point(15.5, 0.95)]}) for seed in (0, 1)]
    recommendation = recommend_for_threshold(collect_points([*RESULTS, *both], "inside"), 0.9)
    assert recommendation is not None
    assert recommendation.method == HaltingMethod("loops", "margin")
    assert HaltingMethod("near", "run") in recommendation.ties


def test_nothing_is_recommended_where_no_method_reaches_the_threshold() -> None:
    assert recommend_for_threshold(collect_points(RESULTS, "inside"), 0.99) is None


def test_an_estimate_of_one_seed_has_the_error_of_its_examples() -> None:
    assert average_over_seeds([3.0], [0.5]) == SeedMean(3.0, 0.5)
    assert average_over_seeds([3.0], [None]) == SeedMean(3.0, None)
    assert average_over_seeds([3.0, 5.0], [None, None]).error == pytest.approx(1.0)


def with_halves(item: dict[str, Any], halves: dict[str, Any]) -> dict[str, Any]:
    item["sets"]["inside"]["half_readings"] = halves
    return item


def test_methods_with_budgets_are_compared_on_the_unfitted_half() -> None:
    """Compare halves of which one is easier by .1: on all examples, the fixed depth would seem to be worse."""
    fixed = with_halves(
        make_entry("fixed", 0, {"run": [make_point(20, 0.8)]}),
        {"run": [make_point(20, 0.9, chosen_score=0.7)]},
    )
    act = with_halves(
        make_entry("act", 0, {"run": [make_point(30, 0.8)]}),
        {
            "run": [make_point(30, 0.9, chosen_score=0.7)],
            "budget": [make_point(25, 0.89, chosen_score=0.69, rule="budget.target=2")],
        },
    )
    points = collect_points([fixed, act], "inside")
    assert {method: [p["score"] for p in by_seed[0]] for method, by_seed in points.items()} == {
        HaltingMethod("fixed", "run"): [0.9],
        HaltingMethod("act", "run"): [0.9],
        HaltingMethod("act", "budget"): [0.89],
    }
    assert compute_best_score(points) == 0.7
    assert find_budget_scores([fixed, act], "inside") == BudgetScores(["act"], [])
    # Without budgets, all examples count.
    assert collect_points([fixed], "inside")[HaltingMethod("fixed", "run")][0][0]["score"] == 0.8


def test_budgets_are_left_out_beside_a_method_without_a_score_on_their_half() -> None:
    halves = {"run": [make_point(30, 0.9)], "budget": [make_point(25, 0.89, rule="budget.target=2")]}
    act = with_halves(make_entry("act", 0, {"run": [make_point(30, 0.8)]}), halves)
    margin = with_halves(
        make_entry("mean", 0, {"run": [make_point(9, 0.8)], "margin": [make_point(8, 0.7)]}),
        {"run": [make_point(9, 0.9)]},
    )
    earlier = make_entry(
        "mor", 0, {"run": [make_point(20, 0.8)], "budget": [make_point(15, 0.85)]}
    )  # stored by an earlier version
    for other_results, unscored in (([margin], ["mean"]), ([earlier], ["mor"])):
        points = collect_points([act, *other_results], "inside")
        assert find_budget_scores([act, *other_results], "inside").unscored == unscored
        assert not any(method.rule == "budget" for method in points)
        assert points[HaltingMethod("act", "run")][0][0]["score"] == 0.8


def test_compute_of_runs_includes_the_prediction_like_exit_rules() -> None:
    """Check one network at full depth, which has the same compute as a run and as an exit rule."""
    mean = make_entry(
        "mean", 0, {"run": [make_point(40, 0.9) | {"prediction_macs": 6.0}], "fixed": [make_point(46, 0.9)]}
    )
    layers = make_entry("layers", 0, {"run": [make_point(20, 0.8) | {"prediction_macs": 6.0}]})
    points = collect_points([mean, layers], "inside")
    assert {method.label: by_seed[0][0]["compute"] for method, by_seed in points.items()} == {
        "mean": 46.0, "mean, fixed": 46.0, "layers": 26.0,
    }  # fmt: skip
    assert find_uncounted_predictions(points) == []
    # A result of an earlier version has no such count: then no run of the task includes it.
    earlier = collect_points([mean, make_entry("layers", 0, {"run": [make_point(20, 0.8)]})], "inside")
    assert [by_seed[0][0]["compute"] for by_seed in earlier.values()] == [40.0, 46.0, 20.0]
    assert find_uncounted_predictions(earlier) == ["layers"]
    assert (
        find_uncounted_predictions(collect_points([make_entry("layers", 0, {"run": [make_point(20, 0.8)]})], "inside"))
        == []
    )


def make_result(name: str, steps: int, macs: float, updates: float = 1.0, spread: float = 0.0) -> dict[str, Any]:
    point = {"score": 0.5, "macs": macs, "updates": updates, "updates_error": spread}
    return {"name": name, "steps": steps, "max_updates": 8, "sets": {"inside": {"readings": {"run": [point]}}}}


def test_comparisons_at_equal_steps_or_compute_leave_out_other_trainings() -> None:
    full, shallow = make_result("full", 100, 80.0, 8.0), make_result("shallow", 100, 20.0, 2.0)
    longer, second = make_result("longer", 400, 20.0, 2.0), make_result("second", 30, 80.0, 8.0)
    # units that halt by themselves, after 4 of 8 updates on average, may have been trained at full depth
    adaptive = make_result("adaptive", 100, 41.0, 4.0, spread=0.1)
    results = [full, shallow, longer, second, adaptive]
    assert [result["name"] for result in select_equal_steps(results)] == ["full", "shallow", "second", "adaptive"]
    assert [result["name"] for result in select_equal_compute(results)] == ["full", "longer", "adaptive"]
    assert select_equal_compute([full, shallow, adaptive]) == []


def make_candidate(compute: float | None, error: float = 0.1, score: float = 0.99) -> Candidate:
    needs = None if compute is None else SeedMean(compute, error, 4, 5)
    return Candidate(needs, SeedMean(score, 0.001, 4, 5))


def test_the_cheapest_of_each_group_decides_a_comparison() -> None:
    comparison = Comparison(
        "?", "", "rules", lambda method: method.rule == "margin", "gates", lambda method: method.rule == "quantile"
    )
    margin, other, gate = (
        HaltingMethod("mean", "margin"),
        HaltingMethod("gate", "margin"),
        HaltingMethod("gate", "quantile"),
    )
    result = evaluate_comparison(
        comparison, {margin: make_candidate(3.0), other: make_candidate(2.0), gate: make_candidate(4.0)}
    )
    assert result is not None
    assert result.first == (other, SeedMean(2.0, 0.1, 4, 5))
    assert result.significantly_cheaper == "first"
    # t = 2 / sqrt(.02) with 8 degrees of freedom; the cheaper method is the better of two, the other one of one.
    assert result.p == pytest.approx(2 * stats.ttest_ind_from_stats(2, 0.1 * 5**0.5, 5, 4, 0.1 * 5**0.5, 5).pvalue)
    alike = evaluate_comparison(comparison, {margin: make_candidate(3.0), gate: make_candidate(3.2)})
    assert alike is not None
    assert alike.significantly_cheaper is None
    irrelevant = evaluate_comparison(comparison, {margin: make_candidate(3.0), gate: make_candidate(4.0)}, least=1.5)
    assert irrelevant is not None
    assert irrelevant.significantly_cheaper is None
    # A method that misses the threshold loses only if its best score is significantly lower.
    for score, cheaper in ((0.9, "second"), (0.9895, None)):
        missed = evaluate_comparison(comparison, {margin: make_candidate(None, score=score), gate: make_candidate(4.0)})
        assert missed is not None
        assert (missed.first, missed.significantly_cheaper) == (None, cheaper)
    assert evaluate_comparison(comparison, {margin: make_candidate(3.0)}) is None
    assert evaluate_comparison(comparison, {margin: make_candidate(None), gate: make_candidate(None)}) is None
    # Within a method, only rules of the same network are compared.
    within = evaluate_comparison(
        comparison._replace(is_within_method=True),
        {margin: make_candidate(1.0), other: make_candidate(2.0), gate: make_candidate(4.0)},
    )
    assert within is not None
    assert within.first == (other, SeedMean(2.0, 0.1, 4, 5))
    assert (
        evaluate_comparison(
            comparison._replace(is_within_method=True), {margin: make_candidate(1.0), gate: make_candidate(4.0)}
        )
        is None
    )
