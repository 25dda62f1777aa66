"""Layers and losses of the Adalayers heads: self-attention, projection, focal loss and entropy penalty.

On a CPU, torch's attention draws a random number for each of the T^2 weights, and searches all scores for rows without
a key. This takes longer than the matrix products. On a CPU, the head therefore uses an attention that does neither.

Shape legend: B batch, T tokens, k width, A heads, d = k / A.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from adadepth.halting.layer_mixing import expected_state, weights_entropy
from adadepth.models.adalayers.configuration import AdaLayersConfig
from adadepth.models.shared.layers import product
from adadepth.models.shared.losses import LossTerm, check_classes, target_weights


def attend(attention: nn.MultiheadAttention, dropout: nn.Module, features: Tensor, mask: Tensor | None) -> Tensor:
    """Apply self-attention over all real tokens, (B, T, k).

    Args:
        attention: Attention module with tokens as the first dimension; see `adadepth.models.adalayers.heads` for the
            reason.
        dropout: Dropout of the attention weights, with the dropout probability of `attention`.
        features: Mixed states, (B, T, k).
        mask: 0 at padding, (B, T), or None if all tokens are real.
    """
    if features.device.type == "cpu":
        return _attend_on_cpu(attention, dropout, features, mask)
    tokens, padding = features.transpose(0, 1), None if mask is None else mask.eq(0)
    attended, _ = attention(tokens, tokens, tokens, padding, need_weights=False)
    result: Tensor = attended.transpose(0, 1)
    return result


def _attend_on_cpu(
    attention: nn.MultiheadAttention, dropout: nn.Module, features: Tensor, mask: Tensor | None
) -> Tensor:
    projected = product(features, attention.in_proj_weight) + attention.in_proj_bias
    query, key, value = projected.unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, A, T, d)
    bias = None
    if mask is not None:  # finite, so that a text without tokens has no NaN
        bias = mask.eq(0)[:, None, None].to(query.dtype) * torch.finfo(query.dtype).min
    if attention.training and attention.dropout > 0:
        scores = attention.head_dim**-0.5 * query @ key.transpose(-1, -2)
        context = dropout((scores if bias is None else scores + bias).softmax(dim=-1)) @ value
    else:
        context = nn.functional.scaled_dot_product_attention(query, key, value, bias)
    # Tokens first, as torch's module lays them out: small masks that follow are drawn in the order of memory.
    attended = product(context.permute(2, 0, 1, 3).flatten(2), attention.out_proj.weight) + attention.out_proj.bias
    return attended.transpose(0, 1)


def project(projector: nn.Module, activated: Tensor) -> Tensor:
    """Return the projected states f = LN(W GELU(Z)), (B, T, k), with a norm without parameters (Dremov 2024)."""
    assert isinstance(projector, nn.Linear)
    projected = product(activated, projector.weight)
    return nn.functional.layer_norm(projected, projected.shape[-1:])


def masked_mean(features: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean state over the real tokens of each sequence, (B, k), or 0 if it has none."""
    if mask is None:
        return features.mean(dim=1)
    real = mask.ne(0).unsqueeze(-1).to(features.dtype)
    return (features * real).sum(dim=1) / real.sum(dim=1).clamp(min=1.0)


def build_zero(parameters: Iterable[nn.Parameter]) -> Tensor | float:
    """Return a scalar 0 that gives every trainable parameter a gradient of 0, as distributed training requires.

    In distributed training, the same parameters must have a gradient in all processes, including parameters that a
    batch did not use.
    """
    return sum(0.0 * parameter.flatten()[0] for parameter in parameters if parameter.requires_grad)


def class_or_focal_loss(config: AdaLayersConfig, logits: Tensor, labels: Tensor) -> LossTerm:
    """Compute the cross-entropy or focal loss of logits, (..., C), for classes, (...); negative classes are ignored.

    The focal loss is a (1 - p_y)^g CE, where p_y is the probability of the correct class (Lin et al. 2017, arXiv
    1708.02002).

    Raises:
        DataError: If a label is not one of the C classes.
    """
    check_classes(labels, logits.shape[-1])
    losses = nn.functional.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten().clamp(min=0).long(), reduction="none"
    )
    weights = target_weights(config, labels).flatten()
    if config.focal_loss_enabled:
        # The original computes the probability from the weighted loss.
        surprise = weights * losses if config.seed_compat else losses
        losses = config.focal_loss_alpha * (1.0 - (-surprise).exp()) ** config.focal_loss_gamma * losses
    return LossTerm((weights * losses).sum(), count_classes(config, labels))


def count_classes(config: AdaLayersConfig, labels: Tensor) -> Tensor:
    """Return the divisor of `class_or_focal_loss`: the number of targets, or the sum of their class weights."""
    if config.focal_loss_enabled and config.seed_compat:
        return torch.full((), labels.numel(), device=labels.device)
    return target_weights(config, labels).sum()


def distribution_terms(config: AdaLayersConfig, weights: Tensor, count: Tensor) -> dict[str, LossTerm]:
    """Return the configured penalties on the layer weights: their entropy, and their mean depth as a share of N.

    Args:
        config: Configuration with the coefficients of the penalties.
        weights: Distribution over the layers, (L,).
        count: Number of targets. A penalty counts once per target, so that it is normalised like the task loss.
    """
    values = {}
    if config.lambda_distribution_entropy:
        entropy = _original_entropy(weights) if config.seed_compat else weights_entropy(weights)
        values["entropy"] = (entropy, config.lambda_distribution_entropy)
    if config.lambda_distribution_depth:
        depth = expected_state(weights, config.layer_states[0]) / config.depth
        values["depth"] = (depth, config.lambda_distribution_depth)
    return {name: LossTerm(value * count, count, weight) for name, (value, weight) in values.items()}


def _original_entropy(weights: Tensor) -> Tensor:
    return -(weights * (weights + 1e-6).log()).mean()
