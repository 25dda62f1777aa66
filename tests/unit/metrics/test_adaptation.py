"""The verdict on whether depth adapts, against the entropy of made-up histograms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adadepth.metrics.adaptation import compute_variance_shares, describe_adaptation


def described(*counts: int) -> dict[str, float]:
    n = sum(counts)
    shares = [count / n for count in counts]
    mean = sum(depth * share for depth, share in enumerate(shares))
    spread = math.sqrt(sum(share * (depth - mean) ** 2 for depth, share in enumerate(shares)))
    entropy = -sum(s * math.log(s) for s in shares if s)
    return {"n": n, "mean": mean, "std": spread, "entropy": entropy, "histogram": list(counts)}


def test_equally_frequent_depths_count_as_many():
    found = describe_adaptation({"all": described(0, 5, 5, 5, 5)}, "token")
    assert found["effective_depths"] == pytest.approx(4.0)
    assert "warning" not in found


@pytest.mark.parametrize(
    ("histogram", "is_warned"),
    [
        ((0, 89, 11, 0, 0, 0, 0), True),  # the demo that a share of 99 % did not notice
        ((0, 0, 0, 95, 3, 1, 1), True),
        ((0, 0, 2, 231), True),  # tests/before/act_pretraining
        ((0, 40, 60), False),
        ((0, 80, 10, 10), False),  # a fifth of the units differs
        ((0, 42, 1095, 5290, 3945, 1714, 813), False),  # act_tiny after 20 steps
    ],
)
def test_recorded_distributions(histogram, is_warned):
    found = describe_adaptation({"all": described(*histogram)}, "token")
    assert ("warning" in found) == is_warned
    if is_warned:
        assert found["warning"].startswith("depth does not adapt: ")
        assert "\n" not in found["warning"]


def test_the_warning_says_where_they_stop():
    found = describe_adaptation({"all": described(0, 89, 11)}, "token")
    assert found["warning"] == "depth does not adapt: 89 % of 100 tokens stop at update 1; it has 1.41 effective depths"


def test_depths_that_only_the_kind_of_token_decides_are_told_apart():
    classes = {"all": described(0, 50, 0, 50), "plain": described(0, 50), "cls": described(0, 0, 0, 50), "c": {"n": 0}}
    found = describe_adaptation(classes, "token")
    assert found["effective_depths"] == pytest.approx(2.0)
    assert found["between"] == {"kind": {"share": pytest.approx(1.0), "classes": 2, "n": 100}}
    assert found["warning"].startswith("depth differs only between kinds of token, which explain 100 %")


def test_depths_that_difficulty_decides_are_no_failure():
    parts = {"difficulty <= 2": described(0, 50), "difficulty > 2": described(0, 0, 0, 50)}
    found = describe_adaptation({"all": described(0, 50, 0, 50), **parts}, "sequence")
    assert found["between"]["difficulty"]["share"] == pytest.approx(1.0)
    assert "warning" not in found


def test_the_share_between_classes_is_kelleys_epsilon():
    depths = [np.repeat([1, 2, 4], [30, 20, 10]), np.repeat([2, 3], [25, 15])]
    named = dict(zip(("correct", "wrong"), depths, strict=True))
    classes = {name: described(*np.bincount(values)) for name, values in named.items()}
    together = np.concatenate(depths)
    within = sum(((values - values.mean()) ** 2).sum() for values in depths) / (100 - 2)
    expected = 1 - within / together.var(ddof=1)
    assert compute_variance_shares(classes)["correctness"]["share"] == pytest.approx(expected)


def test_classes_that_mean_nothing_explain_nothing():
    drawn = np.random.default_rng(0).integers(1, 7, (8, 40))
    classes = {f"difficulty {number}": described(*np.bincount(row)) for number, row in enumerate(drawn)}
    assert compute_variance_shares(classes)["difficulty"]["share"] < 0.05


def test_depths_without_variance_have_none_to_explain():
    assert compute_variance_shares({"correct": described(0, 0, 5), "wrong": described(0, 0, 9)}) == {}


@pytest.mark.parametrize("unit", ["task", "architecture"])
def test_one_depth_for_a_whole_task_is_no_failure(unit):
    assert describe_adaptation({"all": described(0, 0, 9)}, unit) == {}


def test_without_units_nothing_is_said():
    assert describe_adaptation({"all": {"n": 0}}, "token") == {}
