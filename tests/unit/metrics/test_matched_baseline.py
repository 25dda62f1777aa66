"""Matched baseline of recorded exits and of halting masses, compared with plain loops over units."""

from __future__ import annotations

import pytest
import torch

from adadepth.metrics.exit_study import DRAWS
from adadepth.metrics.matched_baseline import (
    build_masses_for_depth,
    compare_recorded,
    find_neighbouring_depths,
    permute_masses,
)
from tests.unit.report.synthetic_exits import make_records


@pytest.mark.parametrize(("mean", "depths"), [(3.0, [3]), (3.2, [3, 4]), (1.0, [1]), (0.4, [1]), (5.999, [5, 6])])
def test_the_integer_depths_around_a_mean(mean: float, depths: list[int]) -> None:
    assert find_neighbouring_depths(mean) == depths


def test_recorded_exits_are_compared_with_one_step_and_permuted_exits() -> None:
    records = make_records(size=200, steps=4)
    assert records.step_logits is not None
    assert records.labels is not None
    exits = torch.where(records.index % 3 == 0, 1, 4)
    compared = compare_recorded(records, exits, "classification", ["accuracy"])

    def accuracy(steps: list[int]) -> float:
        predicted = [int(records.step_logits[row, step - 1].argmax()) for row, step in enumerate(steps)]
        return sum(one == int(label) for one, label in zip(predicted, records.labels, strict=True)) / len(steps)

    assert compared["mean"] == pytest.approx(sum(exits.tolist()) / 200)
    assert compared["own"]["accuracy"] == pytest.approx(accuracy(exits.tolist()))
    low, high = find_neighbouring_depths(compared["mean"])
    assert [row["depth"] for row in compared["fixed"]] == [low, high]
    for row in compared["fixed"]:
        assert row["quality"]["accuracy"] == pytest.approx(accuracy([row["depth"]] * 200))
    # In every permutation a third of the units exit at step 1: the mean over permutations lies near the mixture.
    shares = {1: float((exits == 1).double().mean()), 4: float((exits == 4).double().mean())}
    mixture = sum(share * accuracy([step] * 200) for step, share in shares.items())
    assert compared["permuted"]["quality"]["accuracy"] == pytest.approx(mixture, abs=0.1)
    assert compared["permuted"]["draws"] == DRAWS
    assert compared["predictions"] == 200


def test_masses_of_one_depth_are_means_over_units_that_reach_it() -> None:
    masses = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.4, 0.3, 0.3]])
    updates = torch.tensor([2, 3, 3])
    assert build_masses_for_depth(masses, updates, 3).tolist() == pytest.approx([0.3, 0.3, 1.0])
    assert build_masses_for_depth(masses, updates, 2).tolist() == pytest.approx([0.5, 1.0, 1.0])
    assert build_masses_for_depth(masses, updates, 1).tolist() == [1.0, 1.0, 1.0]


def test_masses_are_permuted_among_the_real_tokens_of_all_batches() -> None:
    generator = torch.Generator().manual_seed(3)
    valid = [torch.rand(4, 7, generator=generator) < 0.7, torch.rand(2, 5, generator=generator) < 0.7]
    masses = [torch.rand(*mask.shape, 3, generator=generator) * mask.unsqueeze(-1) for mask in valid]
    permuted = permute_masses(masses, valid, generator)

    def rows(parts: list[torch.Tensor]) -> list[list[float]]:
        return [
            part[row, column].tolist()
            for part, mask in zip(parts, valid, strict=True)
            for row, column in mask.nonzero()
        ]

    assert sorted(rows(permuted)) == sorted(rows(masses))
    assert rows(permuted) != rows(masses)
    for part, mask in zip(permuted, valid, strict=True):
        assert not part[~mask].any()
