"""The attention of the head on a CPU against torch's module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adadepth.models.adalayers.head_layers import attend
from adadepth.models.shared.layers import Dropout


def build_attention(dropout=0.0):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, dropout)
    nn.init.normal_(attention.in_proj_bias)
    nn.init.normal_(attention.out_proj.bias)
    return attention


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_attention_and_gradients_equal_torch(training, masked):
    attention = build_attention().train(training)
    features = torch.randn(3, 7, 16, requires_grad=True)
    mask = (torch.arange(7) < torch.tensor([[7], [4], [1]])).long() if masked else None
    tokens = features.transpose(0, 1)
    expected = attention(tokens, tokens, tokens, None if mask is None else mask.eq(0))[0].transpose(0, 1)
    expected_gradients = torch.autograd.grad(expected.square().sum(), [features, *attention.parameters()])
    actual = attend(attention, Dropout(0.0), features, mask)
    torch.testing.assert_close(actual, expected)
    gradients = torch.autograd.grad(actual.square().sum(), [features, *attention.parameters()])
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-4, rtol=1e-4)


def test_dropout_of_weights_keeps_their_mean():
    attention, features = build_attention(0.5), torch.randn(1, 5, 16)
    with torch.no_grad():
        exact = attend(attention.eval(), Dropout(0.5).eval(), features, None)
        attention.train()
        samples = attend(attention, Dropout(0.5).train(), features.expand(4000, -1, -1), None)
    assert not torch.equal(samples[0], samples[1])
    deviation = samples.std(dim=0) / len(samples) ** 0.5
    assert ((samples.mean(dim=0) - exact[0]).abs() / deviation).max() < 5


@pytest.mark.parametrize("training", [True, False])
def test_attention_of_a_text_without_tokens_is_finite(training):
    attention = build_attention(0.1).train(training)
    features = torch.randn(2, 4, 16, requires_grad=True)
    attended = attend(attention, Dropout(0.1).train(training), features, torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]]))
    attended.sum().backward()
    assert attended.isfinite().all()
    assert features.grad.isfinite().all()
