"""Cross-entropy in parts, against torch's of all logits at once."""

import pytest
import torch

from adadepth.families.par_xl import adaptive_softmax as module
from adadepth.families.par_xl.adaptive_softmax import parted_cross_entropy


@pytest.mark.parametrize("logits", [1, 3 * 50, 2**20])
@pytest.mark.parametrize("bias", [True, False])
def test_losses_and_gradients_are_those_of_all_logits_at_once(logits, bias, monkeypatch):
    monkeypatch.setattr(module, "_LOGITS", logits)
    torch.manual_seed(0)
    states, weight = torch.randn(10, 4, dtype=torch.float64), torch.randn(50, 4, dtype=torch.float64)
    offsets = torch.randn(50, dtype=torch.float64) if bias else None
    given = [value.requires_grad_() for value in (states, weight, offsets) if value is not None]
    targets = torch.randint(50, (10,))
    above = torch.rand(10, dtype=torch.float64)  # every row's own
    expected = torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(states, weight, offsets), targets, reduction="none"
    )
    found = parted_cross_entropy(states, weight, offsets, targets)
    torch.testing.assert_close(found, expected)
    gradients = zip(torch.autograd.grad(found, given, above), torch.autograd.grad(expected, given, above), strict=True)
    for mine, torch_s in gradients:
        torch.testing.assert_close(mine, torch_s)


def test_a_tail_without_targets_has_gradients_of_zero():
    states, weight = torch.zeros(0, 4, requires_grad=True), torch.randn(50, 4, requires_grad=True)
    losses = parted_cross_entropy(states, weight, None, torch.zeros(0, dtype=torch.long))
    assert losses.shape == (0,)
    assert torch.equal(torch.autograd.grad(losses.sum(), weight)[0], torch.zeros(50, 4))
