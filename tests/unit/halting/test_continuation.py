"""Targets and losses of the continuation stage against a plain loop and in limiting cases."""

from __future__ import annotations

import math

import pytest
import torch

from adadepth.halting.distribution import continuation_losses, continuation_targets, future_loss_reduction


def draw_losses(rows=7, steps=5):
    return torch.rand(rows, steps, generator=torch.Generator().manual_seed(0)) * 2


def test_gain_and_targets_equal_a_plain_loop():
    losses, slope, threshold = draw_losses(), 7.0, 0.2
    gains, targets = future_loss_reduction(losses), continuation_targets(losses, slope, threshold)
    assert gains.shape == targets.shape == (7, 4)
    for row in range(7):
        for step in range(4):
            best = min(losses[row, later].item() for later in range(step + 1, 5))
            gain = max(0.0, losses[row, step].item() - best)
            assert gains[row, step].item() == pytest.approx(gain, abs=1e-6)
            expected = 1 / (1 + math.exp(-slope * (gain - threshold)))
            assert targets[row, step].item() == pytest.approx(expected, abs=1e-6)


def test_losses_equal_a_plain_loop_and_leave_out_the_last_step():
    losses = draw_losses()
    logits = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    computed, targets = continuation_losses(logits, losses, 7.0, 0.2), continuation_targets(losses, 7.0, 0.2)
    for row in range(7):
        total = 0.0
        for step in range(4):
            halt, on = 1 / (1 + math.exp(-logits[row, step].item())), targets[row, step].item()
            total -= (1 - on) * math.log(halt) + on * math.log(1 - halt)
        assert computed[row].item() == pytest.approx(total / 4, abs=1e-5)
    changed = logits.clone()
    changed[:, -1] += 3.0
    assert torch.equal(continuation_losses(changed, losses, 7.0, 0.2), computed)


def test_loss_is_least_at_the_targets_and_step_losses_get_no_gradient():
    losses = draw_losses().requires_grad_()
    targets = continuation_targets(losses, 7.0, 0.2)
    assert not targets.requires_grad
    logits = torch.cat([-targets.logit(), torch.zeros(7, 1)], dim=1).requires_grad_()
    continuation_losses(logits, losses, 7.0, 0.2).sum().backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-6, rtol=0)
    assert losses.grad is None


def test_one_step_has_no_continuation_loss():
    assert future_loss_reduction(torch.ones(3, 1)).shape == (3, 0)
    assert torch.equal(continuation_losses(torch.ones(3, 1), torch.ones(3, 1), 7.0, 0.2), torch.zeros(3))
