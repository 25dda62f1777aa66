"""What a bench recommends: by hand, from points that are easy to count."""

from __future__ import annotations

import math
from typing import Any

import pytest

from adadepth.contrib.bench.measures import (
    Contest,
    Told,
    Way,
    best_score,
    mean_of_seeds,
    needed,
    of_equal_steps,
    of_equal_work,
    outcome_of,
    points_of,
    recommendation,
)


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


def trained(name: str, steps: int, macs: float, updates: float = 1.0, spread: float = 0.0) -> dict[str, Any]:
    own = {"score": 0.5, "macs": macs, "updates": updates, "updates_error": spread}
    return {"name": name, "steps": steps, "max_updates": 8, "sets": {"inside": {"readings": {"run": [own]}}}}


def test_equal_steps_leave_out_what_was_trained_longer_and_equal_work_what_was_trained_for_less() -> None:
    full, shallow = trained("full", 100, 80.0, 8.0), trained("shallow", 100, 20.0, 2.0)
    longer, second = trained("longer", 400, 20.0, 2.0), trained("second", 30, 80.0, 8.0)
    # units that halt by themselves, after 4 of 8 updates on average, may have been trained at full depth
    adaptive = trained("adaptive", 100, 41.0, 4.0, spread=0.1)
    every = [full, shallow, longer, second, adaptive]
    assert [each["name"] for each in of_equal_steps(every)] == ["full", "shallow", "second", "adaptive"]
    assert [each["name"] for each in of_equal_work(every)] == ["full", "longer", "adaptive"]
    assert of_equal_work([full, shallow, adaptive]) == []


def need(work: float, error: float = 0.1) -> dict[str, Any]:
    return {"work": Told(work, error)}


def test_a_contest_is_decided_by_the_cheapest_of_each_group() -> None:
    contest = Contest("?", "", "rules", lambda way: way.read == "margin", "gates", lambda way: way.read == "quantile")
    margin, other, gate = Way("mean", "margin"), Way("gate", "margin"), Way("gate", "quantile")
    found = outcome_of(contest, {margin: need(3.0), other: need(2.0), gate: need(4.0)})
    assert found is not None
    assert found.one == (other, Told(2.0, 0.1))
    assert found.less == "one"
    alike = outcome_of(contest, {margin: need(3.0), gate: need(3.2)})
    assert alike is not None
    assert alike.less is None  # .2 is 1.4 standard errors of the difference
    worse = outcome_of(contest, {margin: None, gate: need(4.0)})
    assert worse is not None
    assert (worse.one, worse.less) == (None, "other")
    assert outcome_of(contest, {margin: need(3.0)}) is None
    assert outcome_of(contest, {margin: None, gate: None}) is None
    # within a way, only what was read of the same network is compared
    within = outcome_of(contest._replace(is_within=True), {margin: need(1.0), other: need(2.0), gate: need(4.0)})
    assert within is not None
    assert within.one == (other, Told(2.0, 0.1))
    assert outcome_of(contest._replace(is_within=True), {margin: need(1.0), gate: need(4.0)}) is None
