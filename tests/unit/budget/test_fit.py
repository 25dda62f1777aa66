"""Fitting a level to a depth: against the level that solves the equation."""

from __future__ import annotations

import math

import pytest

from adadepth.budget.fit import fit_level


@pytest.mark.parametrize("target", [1.2, 2.0, 3.5, 5.7])
def test_the_level_that_gives_a_depth_is_found(target):
    found = fit_level(lambda level: 1 + 5 * level**3, target)
    assert found.is_reached
    assert found.depth == pytest.approx(target, rel=0.005)
    assert 1 + 5 * found.level**3 == found.depth


def test_what_matters_may_lie_near_an_end():
    found = fit_level(lambda level: 1 - 0.2 * math.log10(1 - level), 1.9, tolerance=1e-3)
    assert found.level == pytest.approx(1 - 10**-4.5, abs=3e-6)


@pytest.mark.parametrize(("target", "nearest"), [(0.5, 2.0), (9.0, 4.0)])
def test_a_depth_beyond_both_ends_is_answered_by_the_nearer_one(target, nearest):
    tried = []

    def depth(level):
        tried.append(level)
        return 2.0 + 2.0 * level

    found = fit_level(depth, target)
    assert not found.is_reached
    assert found.depth == pytest.approx(nearest, abs=1e-3)
    assert len(tried) <= 2, "the ends tell it"


def test_steps_that_jump_over_the_target_end_at_the_nearest():
    found = fit_level(lambda level: float(math.ceil(4 * level)), 2.4)
    assert (found.depth, found.is_reached) == (2.0, False)
