"""Dropout masks of 16 random bits per element, against their probability."""

import math

import pytest
import torch
from torch import nn

from adadepth.models.shared.layers import Dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_each_element_is_dropped_with_the_given_probability(probability):
    torch.manual_seed(0)
    dropped = Dropout(probability)(torch.ones(64, 1021)) == 0
    for elements in (dropped, dropped[:, 0::4], dropped[:, 1::4], dropped[:, 2::4], dropped[:, 3::4]):
        deviation = math.sqrt(probability * (1 - probability) / elements.numel())
        assert elements.float().mean().item() == pytest.approx(probability, abs=5 * deviation + 2**-17)


def test_dropout_keeps_the_mean():
    outputs = Dropout(0.1)(torch.ones(5000))
    values = outputs.unique().tolist()
    assert values == [0.0, pytest.approx(1 / (1 - round(0.1 * 2**16) / 2**16))]


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    mask = (Dropout(0.5)(torch.ones(200_000)) > 0).double()
    for distance in (1, 2, 3, 4):
        correlation = torch.corrcoef(torch.stack([mask[distance:], mask[:-distance]]))[0, 1]
        assert abs(correlation.item()) < 5 / math.sqrt(len(mask))


def test_fused_dropout_and_sum_equals_both_steps():
    layer = Dropout(0.3)
    state, change = torch.randn(50, 90, requires_grad=True), torch.randn(50, 90, requires_grad=True)
    results = []
    for total in (lambda: layer.added(state, change), lambda: state + layer(change)):
        torch.manual_seed(1)
        value = total()
        results.append([value, *torch.autograd.grad(value.square().sum(), [state, change])])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dropout_keeps_the_dtype(dtype):
    assert Dropout(0.1)(torch.ones(5000, dtype=dtype)).dtype == dtype


def test_no_random_numbers_are_used_in_evaluation_or_at_zero():
    before = torch.get_rng_state()
    ones = torch.ones(5000)
    for layer in (Dropout(0.1).eval(), Dropout(0.0)):
        assert torch.equal(layer(ones), ones)
        assert torch.equal(layer.added(ones, ones), 2 * ones)
    assert torch.equal(torch.get_rng_state(), before)


def test_probabilities_near_one_are_supported():
    assert Dropout(1 - 1e-9)(torch.ones(5000)).isfinite().all()
    assert isinstance(Dropout(0.1), nn.Dropout)


def test_small_masks_equal_those_of_torch():
    """Compare with torch's masks, so that small runs of earlier versions are reproduced."""
    values, layers = torch.ones(100), (Dropout(0.3), nn.Dropout(0.3))
    outputs = []
    for layer in layers:
        torch.manual_seed(0)
        outputs.append(layer(values))
    assert torch.equal(*outputs)
