"""Products through oneDNN, and dropout from 16 bits a decision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adadepth.families.shared.dropout import Dropout, draw_mask
from adadepth.families.shared.products import product

PRECISIONS = (torch.float32, torch.float64)


@pytest.mark.parametrize("shape", [(4, 2), (3, 5, 8), (9, 61), (2048,)])
def test_a_product_and_its_gradients_are_those_of_double_precision(shape):
    torch.manual_seed(0)
    values, weight = torch.randn(*shape, 96), torch.randn(24, 96)
    gradient = torch.randn(*shape, 24)
    own, exact = ([t.to(dtype, copy=True).requires_grad_() for t in (values, weight)] for dtype in PRECISIONS)
    found, expected = product(*own), exact[0] @ exact[1].T
    found.backward(gradient)
    expected.backward(gradient.double())
    for one, other in ((found, expected), (own[0].grad, exact[0].grad), (own[1].grad, exact[1].grad)):
        torch.testing.assert_close(one.double(), other, atol=1e-6 * other.abs().max().item(), rtol=0)


def test_only_the_gradients_that_are_wanted_are_computed():
    values, weight = torch.randn(4096, 64), torch.randn(64, 64, requires_grad=True)
    product(values, weight).sum().backward()
    assert values.grad is None
    torch.testing.assert_close(weight.grad, values.sum(dim=0).expand(64, 64), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_the_librarys(dtype):
    values, weight = torch.randn(4096, 64, dtype=dtype), torch.randn(64, 64, dtype=dtype)
    assert torch.equal(product(values, weight), nn.functional.linear(values, weight))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(values.float(), weight.float()).dtype == torch.bfloat16


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.85])
def test_so_many_values_are_dropped_and_the_mean_stays(probability):
    torch.manual_seed(0)
    mask = draw_mask(torch.empty(1001, 999), probability)
    dropped = (mask == 0).double().mean().item()
    # Five deviations of a mean over so many draws.
    assert dropped == pytest.approx(probability, abs=5 * (probability * (1 - probability) / mask.numel()) ** 0.5)
    assert mask[mask != 0].unique().item() == pytest.approx(1 / (1 - probability), rel=1e-4)
    neighbours = torch.corrcoef(torch.stack([mask.flatten()[shift : shift - 8] for shift in range(8)]).double())
    assert (neighbours - torch.eye(8)).abs().max() < 0.01


@pytest.mark.parametrize("shape", [(33, 7), (131, 65)])
def test_dropout_follows_the_seed_and_acts_in_training_only(shape):
    layer, values = Dropout(0.3), torch.randn(*shape, requires_grad=True)
    assert torch.equal(layer.eval()(values), values)
    layer.train()
    torch.manual_seed(3)
    first = layer(values)
    first.sum().backward()
    torch.manual_seed(3)
    assert torch.equal(layer(values), first)
    assert not torch.equal(layer(values), first)
    torch.testing.assert_close(values.grad * values, first)
    assert torch.equal(Dropout(0.0).train()(values), values)
