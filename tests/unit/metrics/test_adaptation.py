"""Verdict on whether depth adapts, compared with the entropy of made-up histograms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adadepth.metrics.adaptation import compute_variance_shares, describe_adaptation


def describe_counts(*counts: int) -> dict[str, float]:
    n = sum(counts)
    shares = [count / n for count in counts]
    mean = sum(depth * share for depth, share in enumerate(shares))
    spread = math.sqrt(sum(share * (depth - mean) ** 2 for depth, share in enumerate(shares)))
    entropy = -sum(s * math.log(s) for s in shares if s)
    return {"n": n, "mean": mean, "std": spread, "entropy": entropy, "histogram": list(counts)}


def test_equally_frequent_depths_are_all_effective():
    adaptation = describe_adaptation({"all": describe_counts(0, 5, 5, 5, 5)}, "token")
    assert adaptation["effective_depths"] == pytest.approx(4.0)
    assert "warning" not in adaptation


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
def test_recorded_distributions_are_warned_about_if_nearly_constant(histogram, is_warned):
    adaptation = describe_adaptation({"all": describe_counts(*histogram)}, "token")
    assert ("warning" in adaptation) == is_warned
    if is_warned:
        assert adaptation["warning"].startswith("depth does not adapt: ")
        assert "\n" not in adaptation["warning"]


def test_the_warning_names_the_commonest_depth():
    adaptation = describe_adaptation({"all": describe_counts(0, 89, 11)}, "token")
    assert (
        adaptation["warning"]
        == "depth does not adapt: 89 % of 100 tokens stop at update 1; it has 1.41 effective depths"
    )


def test_depths_that_follow_only_the_kind_of_token_are_a_warning():
    classes = {
        "all": describe_counts(0, 50, 0, 50),
        "plain": describe_counts(0, 50),
        "cls": describe_counts(0, 0, 0, 50),
        "c": {"n": 0},
    }
    adaptation = describe_adaptation(classes, "token")
    assert adaptation["effective_depths"] == pytest.approx(2.0)
    assert adaptation["between"] == {"kind": {"share": pytest.approx(1.0), "classes": 2, "n": 100}}
    assert adaptation["warning"].startswith("depth differs only between kinds of token, which explain 100 %")


def test_depths_that_follow_difficulty_are_no_warning():
    parts = {"difficulty <= 2": describe_counts(0, 50), "difficulty > 2": describe_counts(0, 0, 0, 50)}
    adaptation = describe_adaptation({"all": describe_counts(0, 50, 0, 50), **parts}, "sequence")
    assert adaptation["between"]["difficulty"]["share"] == pytest.approx(1.0)
    assert "warning" not in adaptation


def test_the_share_between_classes_is_kelleys_epsilon():
    depths = [np.repeat([1, 2, 4], [30, 20, 10]), np.repeat([2, 3], [25, 15])]
    depths_by_class = dict(zip(("correct", "wrong"), depths, strict=True))
    classes = {name: describe_counts(*np.bincount(values)) for name, values in depths_by_class.items()}
    together = np.concatenate(depths)
    within = sum(((values - values.mean()) ** 2).sum() for values in depths) / (100 - 2)
    expected = 1 - within / together.var(ddof=1)
    assert compute_variance_shares(classes)["correctness"]["share"] == pytest.approx(expected)


def test_random_classes_explain_no_variance():
    samples = np.random.default_rng(0).integers(1, 7, (8, 40))
    classes = {f"difficulty {number}": describe_counts(*np.bincount(row)) for number, row in enumerate(samples)}
    assert compute_variance_shares(classes)["difficulty"]["share"] < 0.05


def test_constant_depths_have_no_variance_shares():
    assert compute_variance_shares({"correct": describe_counts(0, 0, 5), "wrong": describe_counts(0, 0, 9)}) == {}


@pytest.mark.parametrize("unit", ["task", "architecture"])
def test_one_depth_for_a_whole_task_is_no_warning(unit):
    assert describe_adaptation({"all": describe_counts(0, 0, 9)}, unit) == {}


def test_no_units_give_no_verdict():
    assert describe_adaptation({"all": {"n": 0}}, "token") == {}
