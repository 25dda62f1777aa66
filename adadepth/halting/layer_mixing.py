"""Layer mixing: a learned weighted average of the hidden states of all layers.

    p~ = softmax(alpha p),    x = sum_j p~_j f_j(Z_j)

Peters et al. 2018 (ELMo, arXiv 1802.05365), equation 1. Dremov 2024 (Adalayers) adds the sharpness alpha and cuts small
weights to exactly 0, so that their layers need not be computed. Everything is float32.

Shape legend: L layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adadepth.runtime.devices import fill_values


def layer_weights(
    scores: Tensor,
    alpha: float,
    cutoff: float = 0.0,
    top_k: int | None = None,
    active: Sequence[int] | None = None,
) -> Tensor:
    """Return the weights of a learned average over layers, float32, (L,). They sum to 1; removed layers have weight 0.

    Args:
        scores: Scores p, (L,), any floating-point type. Equal scores give the uniform distribution.
        alpha: Sharpness, a factor of the scores. It therefore also scales the step that an optimiser makes on the
            logits.
        cutoff: Largest weight that is set to 0. The remaining weights are renormalised, and the largest weight is never
            cut. A cut layer has no direct gradient and seldom returns.
        top_k: Number of layers with the largest scores that take part, or None for all. The gradient is that of the
            softmax over all layers (straight through), so that the other layers can enter.
        active: Layers that may take part at all, or None for all.
    """
    logits = alpha * scores.float()
    if active is not None and len(active) < len(scores):
        takes_part = fill_values([layer in active for layer in range(len(scores))], scores.device, torch.bool)
        logits = logits.masked_fill(~takes_part, -torch.inf)
    soft = weights = logits.softmax(dim=0)
    if top_k is not None and top_k < len(scores):
        is_largest = torch.zeros_like(logits, dtype=torch.bool).scatter(0, logits.topk(top_k).indices, True)
        weights = logits.masked_fill(~is_largest, -torch.inf).softmax(dim=0)
    if cutoff > 0.0:
        weights = weights * ((weights > cutoff) | (weights == weights.max()))
        weights = weights / weights.sum()
    if top_k is not None:
        weights = weights.detach() + (soft - soft.detach())
    return weights


def weights_entropy(weights: Tensor) -> Tensor:
    """Return the entropy of layer weights, -sum_j p~_j log p~_j, in nats: 0 for one layer, ln L for uniform weights."""
    # The inner `where` keeps log(0) out of the backward pass, which would turn a zero gradient into NaN.
    logs = torch.where(weights > 0.0, weights, 1.0).log()
    return -(weights * logs).sum()


def expected_state(weights: Tensor, first_state: int) -> Tensor:
    """Return the mean depth sum_j p~_j n_j under layer weights p~, where layer j has depth n_j = `first_state` + j."""
    states = torch.arange(first_state, first_state + len(weights), device=weights.device)
    return (weights * states).sum()


def compute_tail_masses(weights: Tensor, first_state: int, depth: int) -> Tensor:
    """Return t_n, the total weight of the hidden states at depth n and deeper, for n = 1..N, (N,).

    The powers t_n^a add up to the expected state for a = 1, and to the deepest state with nonzero weight for a -> 0.

    Args:
        weights: Mixing weights p~, (L,).
        first_state: Number of the state of the first layer.
        depth: Number of blocks N.
    """
    masses = torch.nn.functional.pad(weights, (first_state, depth + 1 - first_state - len(weights)))
    return masses.flip(0).cumsum(dim=0).flip(0)[1:]
