"""Gradients, edges and statistics of layer weights; tests/property compares them with their definition."""

from __future__ import annotations

import math

import pytest
import torch

from adadepth.halting.layer_mixing import expected_state, layer_weights, weights_entropy

SCORES = torch.tensor([0.3, -0.1, 0.25, 0.9, 0.0])


def test_the_largest_weight_survives_any_cutoff():
    assert layer_weights(SCORES, 3.0, cutoff=0.99).tolist() == [0, 0, 0, 1, 0]


def test_top_k_keeps_the_scores_and_gives_all_a_gradient():
    scores = SCORES.clone().requires_grad_()
    (layer_weights(scores, 3.0, top_k=2) * torch.arange(5.0)).sum().backward()
    full = SCORES.clone().requires_grad_()
    (layer_weights(full, 3.0) * torch.arange(5.0)).sum().backward()
    assert torch.equal(scores.detach(), SCORES)
    torch.testing.assert_close(scores.grad, full.grad)
    assert (scores.grad != 0).all()


def test_restricting_to_layers_with_weight_changes_nothing():
    weights = layer_weights(SCORES, 3.0, cutoff=0.1)
    restricted = layer_weights(SCORES, 3.0, cutoff=0.1, active=weights.nonzero().flatten().tolist())
    torch.testing.assert_close(restricted, weights)


@pytest.mark.parametrize("options", [{}, {"cutoff": 0.1}, {"top_k": 2}, {"active": (1, 3)}])
def test_gradients_are_finite(options):
    scores = SCORES.clone().requires_grad_()
    weights = layer_weights(scores, 200.0, **options)
    (weights_entropy(weights) + expected_state(weights, 1)).backward()
    assert scores.grad.isfinite().all()


def test_entropy_and_depth():
    assert weights_entropy(torch.full((7,), 1 / 7)).item() == pytest.approx(math.log(7))
    assert weights_entropy(torch.tensor([0.0, 1.0, 0.0])).item() == 0.0
    assert weights_entropy(torch.tensor([0.25, 0.75])).item() == pytest.approx(
        -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    )
    assert expected_state(torch.tensor([0.25, 0.5, 0.25]), 1).item() == pytest.approx(2.0)
    assert expected_state(torch.tensor([0.25, 0.5, 0.25]), 0).item() == pytest.approx(1.0)


def test_a_depth_penalty_moves_weight_to_shallow_layers():
    scores = torch.ones(5, requires_grad=True)
    expected_state(layer_weights(scores, 10.0), 0).backward()
    downhill = -scores.grad
    assert (downhill.diff() < 0).all()
    assert downhill[0] > 0 > downhill[-1]


def test_low_precision_scores_give_float32_weights():
    weights = layer_weights(SCORES.bfloat16(), 3.0, cutoff=0.1)
    assert weights.dtype == torch.float32
    assert weights.sum().item() == pytest.approx(1.0)
