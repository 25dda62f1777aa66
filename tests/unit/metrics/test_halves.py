"""Split of evaluated examples into two halves, on which budgets are fitted and methods are compared."""

from __future__ import annotations

import numpy as np

from adadepth.metrics.halves import select_first_half


def test_halves_are_of_equal_size_and_the_same_in_every_call() -> None:
    first = select_first_half(np.arange(101))
    assert (first.sum(), (~first).sum()) == (50, 51)
    assert (first == select_first_half(np.arange(101))).all()
    assert 15 < first[:50].sum() < 35  # drawn, and not the first rows


def test_examples_of_an_owner_stay_together() -> None:
    """Keep tokens in the half of their sequence, so that budgets and exit rules are scored on the same."""
    sequences = np.repeat(np.arange(9), np.arange(1, 10))
    assert (select_first_half(sequences) == select_first_half(np.arange(9))[sequences]).all()
    assert (select_first_half(3 * np.arange(9) + 5) == select_first_half(np.arange(9))).all()


def test_one_owner_has_no_halves() -> None:
    assert not select_first_half(np.zeros(4)).any()
