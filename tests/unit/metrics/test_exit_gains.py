"""Gains over the best fixed step, which is selected on one half of the sequences and compared on the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from adadepth.metrics.exit_gains import estimate_fixed_gains
from adadepth.metrics.halves import select_first_half
from adadepth.metrics.significance import SeedMean, compare_means


def make_scores(by_step: np.ndarray) -> Any:
    """Return scores of examples at every step, (M, N)."""
    table = torch.from_numpy(by_step)
    return SimpleNamespace(
        by_step=table, losses=None, score_examples=lambda steps: table.gather(1, steps.unsqueeze(1) - 1).squeeze(1)
    )


def test_the_half_that_selects_the_step_does_not_count() -> None:
    sequences, generator = torch.arange(40), np.random.default_rng(1)
    first = select_first_half(sequences.numpy())
    by_step = generator.integers(0, 2, (40, 4)).astype(float)
    by_step[first, 1] = 1.0  # step 2 is the best on the first half alone
    by_step[~first, 0], by_step[~first, 1] = 1.0, 0.0
    exits = torch.from_numpy(generator.integers(1, 5, 40))
    gain = estimate_fixed_gains(make_scores(by_step), exits, sequences, most=3.0)["fixed"]
    exit_scores = by_step[np.arange(40), exits.numpy() - 1][~first]
    expected = {
        "baseline_depth": 2.0, "baseline": 0.0, "adaptive": pytest.approx(exit_scores.mean()), "sequences": 20,
        "selected_on": 20, "full_depth": 4, "full_depth_value": pytest.approx(by_step[~first, 3].mean()),
    }  # fmt: skip
    assert gain | expected == gain


@pytest.mark.parametrize(("least", "depth"), [(0.4, 1.0), (0.7, 2.0), (0.9, None)])
def test_the_cheapest_step_that_is_as_good_is_selected_on_the_first_half(least: float, depth: float | None) -> None:
    """Draw steps that are right in 50, 80, 85 and 100 % of the first half, and never in the other."""
    sequences = torch.arange(400)
    first = select_first_half(sequences.numpy())
    ranks = np.zeros(400)
    ranks[first] = (np.arange(first.sum()) + 0.5) / first.sum()
    by_step = np.stack([(ranks < share) & first for share in (0.5, 0.8, 0.85, 1.0)], axis=1).astype(float)
    exits = torch.where(torch.from_numpy(ranks < least), 4, 1)
    table = make_scores(by_step)
    table.score_examples = lambda steps: torch.from_numpy(((ranks < least) & first).astype(float))
    gains = estimate_fixed_gains(table, exits, sequences, most=3.5)
    assert gains["fixed"]["baseline_depth"] == 3.5
    assert gains.get("cheaper", {}).get("baseline_depth") == depth
    if depth is not None:
        assert gains["cheaper"]["adaptive"] == gains["cheaper"]["baseline"] == 0.0
        assert gains["cheaper"]["sequences"] == 200


def test_equal_steps_are_not_called_different() -> None:
    """Draw 300 networks with equal steps: at most one in ten is called different (one in twenty is expected)."""
    generator, different, gains = np.random.default_rng(0), 0, []
    for _ in range(300):
        by_step = (generator.random((200, 8)) < 0.8).astype(float)
        exits = torch.from_numpy(generator.integers(1, 9, 200))
        gain = estimate_fixed_gains(make_scores(by_step), exits, torch.arange(200), most=4.5)["fixed"]
        gains.append(gain["adaptive"] - gain["baseline"])
        different += compare_means(SeedMean(gains[-1], gain["error"], gain["freedom"]), SeedMean(0.0, 0.0)) < 0.05
    assert different <= 30
    assert abs(np.mean(gains)) < 0.008  # selected and compared on the same examples, it would be -.04


def test_a_single_sequence_selects_and_is_not_tested() -> None:
    exits = torch.tensor([1, 2, 3])
    gain = estimate_fixed_gains(make_scores(np.eye(3)), exits, torch.zeros(3, dtype=int), most=2.0)["fixed"]
    assert gain["error"] is None
    assert gain["selected_on"] == 0
