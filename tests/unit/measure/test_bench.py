"""What a bench recommends: by hand, from points that are easy to count."""

from __future__ import annotations

import math
from typing import Any

import pytest

from adadepth.measure.bench import Told, Way, best_score, mean_of_seeds, needed, points_of, recommendation


def point(macs: float, score: float, chosen: float | None = None, rule: str | None = None) -> dict[str, Any]:
    return {
        "rule": rule, "score": score, "chosen_score": chosen, "updates": macs / 10, "macs": macs,
        "updates_error": 0.1, "score_error": 0.01,
    }  # fmt: skip


def result(way: str, seed: int, readings: dict[str, Any], setting: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"way": way, "seed": seed, "setting": list(setting), "sets": {"inside": {"readings": readings}}}


DEPTHS = {k: {"run": [point(10.0 * k, 0.5 + 0.1 * k)]} for k in (1, 4)}
RESULTS = [
    *(result("fixed", seed, DEPTHS[k], (f"depth={k}",)) for seed in (0, 1) for k in DEPTHS),
    result("loops", 0, {"margin": [point(12, 0.86, 0.91, "margin:0.1"), point(16, 0.9, 0.9, "margin:0.5")]}),
    result("loops", 1, {"margin": [point(12, 0.8, 0.8, "margin:0.1"), point(18, 0.92, 0.91, "margin:0.5")]}),
]  # fmt: skip


def test_least_work_is_chosen_on_one_half_and_told_of_the_other() -> None:
    points = points_of(RESULTS, "inside")
    assert best_score(points) == pytest.approx((0.91 + 0.91) / 2)
    needs = needed(points, 0.9)
    margin = needs[Way("loops", "margin")]
    assert margin is not None
    assert margin["settings"] == {0: "margin:0.1", 1: "margin:0.5"}
    # of seed 0 the cheaper one reached the bar where it was chosen, though it scores less where it is told
    assert margin["work"].mean == pytest.approx((12 + 18) / 2)
    assert margin["score"].mean == pytest.approx((0.86 + 0.92) / 2)
    # two seeds of works 12 and 18, each with 0.1 of an update of 10 multiply-accumulates
    assert margin["work"].error == pytest.approx(math.sqrt((18.0 + 1.0) / 2))
    fixed = needs[Way("fixed", "run")]
    assert fixed is not None
    assert fixed["settings"] == {0: "depth=4", 1: "depth=4"}
    assert recommendation(needs) == {"take": Way("loops", "margin"), "not_told_apart": []}


def test_what_differs_by_chance_is_not_told_apart() -> None:
    needs = needed(points_of([*RESULTS, result("near", 0, {"run": [point(15.5, 0.95)]})], "inside"), 0.9)
    assert needs[Way("near", "run")] is None  # seed 1 is missing
    both = [result("near", seed, {"run": [point(15.5, 0.95)]}) for seed in (0, 1)]
    found = recommendation(needed(points_of([*RESULTS, *both], "inside"), 0.9))
    assert found == {"take": Way("loops", "margin"), "not_told_apart": [Way("near", "run")]}


def test_nothing_is_recommended_where_no_reading_reaches_the_bar() -> None:
    assert recommendation(needed(points_of(RESULTS, "inside"), 0.99)) is None


def test_an_estimate_of_one_seed_has_the_error_of_its_examples() -> None:
    assert mean_of_seeds([3.0], [0.5]) == Told(3.0, 0.5)
    assert mean_of_seeds([3.0], [None]) == Told(3.0, None)
    assert mean_of_seeds([3.0, 5.0], [None, None]).error == pytest.approx(1.0)
