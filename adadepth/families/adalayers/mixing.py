"""From states to features: projections, and the mean over real tokens.

Shape legend: B batch, T tokens, K width of the base's states, k width of the projected states.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from adadepth.families.shared.products import product


def project(projector: nn.Module, activated: Tensor) -> Tensor:
    """Project GELU(Z), f = LN(W GELU(Z)), (B, T, K) to (B, T, k); the norm has no parameters (Dremov 2024)."""
    assert isinstance(projector, nn.Linear)
    projected = product(activated, projector.weight)
    return nn.functional.layer_norm(projected, projected.shape[-1:])


def masked_mean(features: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over real tokens, (B, T, k) to (B, k); zeros where a sequence has none."""
    if mask is None:
        return features.mean(dim=1)
    real = mask.ne(0).unsqueeze(-1).to(features.dtype)
    return (features * real).sum(dim=1) / real.sum(dim=1).clamp(min=1.0)


def zero_of(parameters: Iterable[nn.Parameter]) -> Tensor | float:
    """Zero, with a gradient of zero to every trainable parameter.

    Several processes must agree on which parameters have a gradient, also those that a batch did not use.
    """
    return sum(0.0 * parameter.flatten()[0] for parameter in parameters if parameter.requires_grad)
