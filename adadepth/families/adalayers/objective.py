"""The losses of Adalayers: class-weighted or focal cross-entropy, and two penalties on the distribution.

Shape legend: B batch, T tokens, C classes, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adadepth.families.adalayers.configuration import AdaLayersConfig
from adadepth.families.shared.losses import LossTerm, check_classes, target_weights
from adadepth.halting.layer_mixing import expected_state, weights_entropy


def class_loss(config: AdaLayersConfig, logits: Tensor, labels: Tensor) -> LossTerm:
    """Cross-entropy or focal loss of logits (..., C) and classes (...), negative where there is no target.

    The focal loss is a (1 - p_y)^g CE (Lin et al. 2017, arXiv 1708.02002), p_y the probability of the right class.

    Raises:
        DataError: If a label is not one of the C classes.
    """
    check_classes(labels, logits.shape[-1])
    losses = nn.functional.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten().clamp(min=0).long(), reduction="none"
    )
    weights = target_weights(config, labels).flatten()
    if config.focal_loss_enabled:
        # The original reads the probability off the weighted loss.
        surprise = weights * losses if config.seed_compat else losses
        losses = config.focal_loss_alpha * (1.0 - (-surprise).exp()) ** config.focal_loss_gamma * losses
    return LossTerm((weights * losses).sum(), count_classes(config, labels))


def count_classes(config: AdaLayersConfig, labels: Tensor) -> Tensor:
    """What `class_loss` is divided by: the targets, or the sum of their weights."""
    if config.focal_loss_enabled and config.seed_compat:
        return torch.full((), labels.numel(), device=labels.device)
    return target_weights(config, labels).sum()


def distribution_terms(config: AdaLayersConfig, weights: Tensor, count: Tensor) -> dict[str, LossTerm]:
    """The penalties that are switched on: the entropy of the weights (L,), and their mean depth as a share of N.

    Args:
        config: Says which.
        weights: The distribution.
        count: The task's targets. A penalty is taken once for each, so that it is normalised as the task is.
    """
    values = {}
    if config.lambda_distribution_entropy:
        entropy = _reference_entropy(weights) if config.seed_compat else weights_entropy(weights)
        values["entropy"] = (entropy, config.lambda_distribution_entropy)
    if config.lambda_distribution_depth:
        depth = expected_state(weights, config.layer_states[0]) / config.depth
        values["depth"] = (depth, config.lambda_distribution_depth)
    return {name: LossTerm(value * count, count, weight) for name, (value, weight) in values.items()}


def _reference_entropy(weights: Tensor) -> Tensor:
    return -(weights * (weights + 1e-6).log()).mean()
