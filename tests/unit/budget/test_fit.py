"""Fitting a level to a depth, against the level that solves the equation."""

from __future__ import annotations

import math

import pytest

from adadepth.budget.fit import fit_level


@pytest.mark.parametrize("target", [1.2, 2.0, 3.5, 5.7])
def test_fit_finds_the_level_of_a_depth(target):
    fit = fit_level(lambda level: 1 + 5 * level**3, target)
    assert fit.is_reached
    assert fit.depth == pytest.approx(target, rel=0.005)
    assert 1 + 5 * fit.level**3 == fit.depth


def test_fit_resolves_levels_near_an_end():
    fit = fit_level(lambda level: 1 - 0.2 * math.log10(1 - level), 1.9, tolerance=1e-3)
    assert fit.level == pytest.approx(1 - 10**-4.5, abs=3e-6)


@pytest.mark.parametrize(("target", "nearest"), [(0.5, 2.0), (9.0, 4.0)])
def test_an_unreachable_depth_gives_the_nearer_end(target, nearest):
    tried = []

    def compute_depth(level):
        tried.append(level)
        return 2.0 + 2.0 * level

    fit = fit_level(compute_depth, target)
    assert not fit.is_reached
    assert fit.depth == pytest.approx(nearest, abs=1e-3)
    assert len(tried) <= 2, "the two ends suffice"


def test_a_step_function_gives_the_nearest_depth():
    fit = fit_level(lambda level: float(math.ceil(4 * level)), 2.4)
    assert (fit.depth, fit.is_reached) == (2.0, False)
