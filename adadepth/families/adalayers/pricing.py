"""The work of a base that is read layer by layer, and of the head on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from adadepth.families.adalayers.configuration import AdaLayersConfig
from adadepth.families.shared.encoders import block_work, entry_work
from adadepth.families.shared.losses import label_count
from adadepth.halting.trace import DepthTrace, Work


def price_layers(config: AdaLayersConfig, trace: DepthTrace, tokens_are_classified: bool) -> Work:
    """Multiply-accumulates of a traced batch; look-ups, norms and activations are not counted.

    A token in a sequence of S costs 4 K^2 + 2 S K + 2 K F a block, the projection of every layer that is mixed, and
    the head. `executed` and `dense` are what ran, padding included: no blocks where the states came from a cache.
    `adaptive` is what reading the mixed layers takes, `full` all N blocks and all layers.

    Args:
        config: Widths.
        trace: With `layer_weights`, and in `execution` `tokens` and `width`.
        tokens_are_classified: Whether the head predicts for every token, or once for a sequence.
    """
    ran = trace.executed
    assert ran.tokens is not None
    assert isinstance(ran.width, int)
    assert trace.layer_weights is not None
    base = config.base_config
    assert isinstance(base, PreTrainedConfig)
    tokens = ran.tokens.double()
    width = torch.full_like(tokens, ran.width)
    mixed = trace.layer_weights.ne(0).sum()

    def work(length: Tensor, blocks: Any, layers: Any) -> Tensor:
        read = (blocks != 0) * entry_work(base) + blocks * block_work(base, length)
        return length * (read + _mix_work(config, layers)) + _head_work(config, length, tokens_are_classified)

    adaptive = work(tokens, trace.updates.double(), mixed)
    full = work(tokens, trace.max_depth, len(config.layer_states))
    executed = work(width, ran.steps, mixed).sum()
    return Work(executed, executed, adaptive.sum(), full.sum())


def _mix_work(config: AdaLayersConfig, layers: Any) -> Tensor | float:
    """Projections and weighted sum, a token."""
    states, projected = config.state_width, config.project_dim
    if config.mix == "projected":
        return layers * float(states * projected + projected)
    return layers * float(states) + (states * projected if config.head == "attention" else 0.0)


def _head_work(config: AdaLayersConfig, length: Tensor, tokens_are_classified: bool) -> Tensor:
    """The head of a whole sequence of this length."""
    width = config.mixed_width
    output = width * label_count(config) * (length if tokens_are_classified else 1.0)
    if config.head == "linear":
        return torch.zeros_like(length) + output
    layer = 4 * width**2 + 2 * length * width
    if tokens_are_classified:
        layer = config.attention_layers_num * (layer + 2 * width * config.dim_feedforward)
    return length * layer + output
