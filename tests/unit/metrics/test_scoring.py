"""Losses of predictions: float32, whatever the precision of the logits."""

from __future__ import annotations

import pytest
import torch

from adadepth.metrics.scoring import compute_example_losses


@pytest.mark.parametrize(("problem", "labels"), [
    ("classification", torch.tensor([0, 3])), ("multi_label", torch.tensor([[1.0, 0, 0, 1], [0, 0, 1, 1]])),
])  # fmt: skip
def test_losses_of_half_precision_logits_are_float32(problem: str, labels: torch.Tensor) -> None:
    """Compute losses in float32, not bfloat16 (huggingface/transformers#34147, google-deepmind/optax#1020)."""
    logits = torch.tensor([[1.5, -2.0, 0.25, 3.0], [5.0, 0.5, -1.0, 0.125]])
    probabilities = logits.double().softmax(-1) if problem == "classification" else logits.double().sigmoid()
    if problem == "classification":
        expected = -probabilities[torch.arange(2), labels].log()
    else:
        expected = -torch.where(labels > 0, probabilities, 1 - probabilities).log().mean(-1)
    losses = compute_example_losses(logits.bfloat16(), labels, problem)  # type: ignore[arg-type]
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses.double(), expected, atol=1e-6, rtol=1e-6)
