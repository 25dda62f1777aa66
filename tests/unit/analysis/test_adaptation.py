"""The verdict on whether depth adapts, against the entropy of made-up histograms."""

from __future__ import annotations

import math

import pytest

from adadepth.analysis.measure.adaptation import describe_adaptation


def described(*counts: int) -> dict[str, float]:
    n = sum(counts)
    shares = [count / n for count in counts]
    mean = sum(depth * share for depth, share in enumerate(shares))
    spread = math.sqrt(sum(share * (depth - mean) ** 2 for depth, share in enumerate(shares)))
    return {"n": n, "mean": mean, "std": spread, "entropy": -sum(s * math.log(s) for s in shares if s)}


def test_equally_frequent_depths_count_as_many():
    found = describe_adaptation({"all": described(0, 5, 5, 5, 5)}, "token")
    assert found == {"effective_depths": pytest.approx(4.0)}


def test_the_demo_that_ended_at_one_update_is_warned_of():
    """89 % of the tokens at one depth, which the share of 99 % did not notice."""
    found = describe_adaptation({"all": described(0, 89, 11, 0, 0, 0, 0)}, "token")
    assert found["warning"].startswith("depth does not adapt (1.11 +- 0.31 updates, as varied as 1.4")
    assert "\n" not in found["warning"]


def test_depths_that_only_their_class_decides_are_told_apart():
    classes = {"all": described(0, 50, 0, 50), "a": described(0, 50), "b": described(0, 0, 0, 50), "c": {"n": 0}}
    found = describe_adaptation(classes, "sequence")
    assert found["effective_depths"] == pytest.approx(2.0)
    assert found["effective_depths_within"] == pytest.approx(1.0)
    assert found["warning"].startswith("depth differs between classes only")


@pytest.mark.parametrize("unit", ["task", "architecture"])
def test_one_depth_for_a_whole_task_is_no_failure(unit):
    assert describe_adaptation({"all": described(0, 0, 9)}, unit) == {}


def test_without_units_nothing_is_said():
    assert describe_adaptation({"all": {"n": 0}}, "token") == {}
