"""Tests of significance, compared with scipy and published examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from adadepth.metrics.significance import (
    SeedMean,
    assign_groups,
    average_over_seeds,
    compare_means,
    compute_half_width,
    correct_p_values,
)

VALUES = st.lists(st.floats(-5, 5).map(lambda value: round(value, 3)), min_size=2, max_size=6)


@given(VALUES, VALUES)
def test_differences_over_seeds_are_tested_by_welch(first: list[float], second: list[float]) -> None:
    if np.ptp(first) == 0 and np.ptp(second) == 0:
        return
    p = compare_means(average_over_seeds(first), average_over_seeds(second))
    assert p == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue, rel=1e-6, abs=1e-12)


@given(VALUES)
def test_differences_of_pairs_are_tested_against_0(differences: list[float]) -> None:
    if np.ptp(differences) > 0:
        p = compare_means(average_over_seeds(differences), SeedMean(0.0, 0.0))
        assert p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-6)


def test_one_seed_has_no_test_over_seeds() -> None:
    assert compare_means(average_over_seeds([3.0]), SeedMean(0.0, 0.0)) == 1.0
    assert compare_means(SeedMean(3.0, None), SeedMean(1.0, None)) == 1.0
    # The error over examples is known: the test is that of the normal distribution.
    assert compare_means(SeedMean(3.0, 0.6), SeedMean(1.0, 0.8)) == pytest.approx(2 * stats.norm.sf(2.0))


def test_constants_differ_or_are_equal() -> None:
    constant = average_over_seeds([2.0, 2.0, 2.0])
    assert compare_means(constant, average_over_seeds([2.0, 2.0])) == 1.0
    assert compare_means(constant, average_over_seeds([3.0, 3.0])) == 0.0


def test_p_values_are_corrected_as_holm_does() -> None:
    """Check the example of Holm (1979), multiplied by 4, 3, 2 and 1 in order, and never falling."""
    assert correct_p_values([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert correct_p_values([0.6, 0.5]) == [1.0, 1.0]
    assert correct_p_values([]) == []


def test_an_interval_is_that_of_t() -> None:
    assert compute_half_width(2.0, 4) == pytest.approx(2.0 * stats.t.ppf(0.975, 4))
    assert compute_half_width(2.0, float("inf")) == pytest.approx(2.0 * stats.norm.ppf(0.975))


@pytest.mark.parametrize("period", [2, 4, 5, 10, 20])
def test_groups_mix_data_that_alternate(period: int) -> None:
    """Mix alternating data: an error over groups of equal data would be that of a few draws."""
    groups = assign_groups(np.arange(800))
    classes = np.arange(800) % period
    assert np.bincount(groups).tolist() == [40] * 20
    shares = [np.mean(classes[groups == group] == 0) for group in range(20)]
    assert max(shares) <= 2 / period
    assert min(shares) > 0
