"""Masks of 16 random bits an element, against the probability that they are of."""

import math

import pytest
import torch
from torch import nn

from adadepth.models.shared.layers import Dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_each_place_is_dropped_as_often_as_asked(probability):
    torch.manual_seed(0)
    dropped = Dropout(probability)(torch.ones(64, 1021)) == 0
    for places in (dropped, dropped[:, 0::4], dropped[:, 1::4], dropped[:, 2::4], dropped[:, 3::4]):
        deviation = math.sqrt(probability * (1 - probability) / places.numel())
        assert places.float().mean().item() == pytest.approx(probability, abs=5 * deviation + 2**-17)


def test_what_is_kept_has_the_mean_of_what_was_there():
    kept = Dropout(0.1)(torch.ones(5000))
    values = kept.unique().tolist()
    assert values == [0.0, pytest.approx(1 / (1 - round(0.1 * 2**16) / 2**16))]


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(200_000)) > 0).double()
    for distance in (1, 2, 3, 4):
        correlation = torch.corrcoef(torch.stack([kept[distance:], kept[:-distance]]))[0, 1]
        assert abs(correlation.item()) < 5 / math.sqrt(len(kept))


def test_added_is_the_sum_with_what_is_dropped():
    layer = Dropout(0.3)
    state, change = torch.randn(50, 90, requires_grad=True), torch.randn(50, 90, requires_grad=True)
    found = []
    for total in (lambda: layer.added(state, change), lambda: state + layer(change)):
        torch.manual_seed(1)
        value = total()
        found.append([value, *torch.autograd.grad(value.square().sum(), [state, change])])
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_stay(dtype):
    assert Dropout(0.1)(torch.ones(5000, dtype=dtype)).dtype == dtype


def test_nothing_is_drawn_in_evaluation_or_with_probability_zero():
    before = torch.get_rng_state()
    ones = torch.ones(5000)
    for layer in (Dropout(0.1).eval(), Dropout(0.0)):
        assert torch.equal(layer(ones), ones)
        assert torch.equal(layer.added(ones, ones), 2 * ones)
    assert torch.equal(torch.get_rng_state(), before)


def test_nearly_everything_may_be_dropped():
    assert Dropout(1 - 1e-9)(torch.ones(5000)).isfinite().all()
    assert isinstance(Dropout(0.1), nn.Dropout)


def test_small_masks_are_the_librarys():
    """A small run of an earlier version ends with the weights that it ended with."""
    values, layers = torch.ones(100), (Dropout(0.3), nn.Dropout(0.3))
    found = []
    for layer in layers:
        torch.manual_seed(0)
        found.append(layer(values))
    assert torch.equal(*found)
