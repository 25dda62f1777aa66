"""The work of a base that is read layer by layer, and of the head on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from adadepth.families.adalayers.configuration import AdaLayersConfig
from adadepth.families.shared.losses import label_count
from adadepth.halting.trace import DepthTrace, Work

# What the feed-forward width is called in the configurations of transformers.
_INNER_NAMES = ("intermediate_size", "encoder_ffn_dim", "d_ff", "hidden_dim")


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
        read = (blocks != 0) * _entry_work(base) + blocks * _block_work(base, length)
        return length * (read + _mix_work(config, layers)) + _head_work(config, length, tokens_are_classified)

    adaptive = work(tokens, trace.updates.double(), mixed)
    full = work(tokens, trace.max_depth, len(config.layer_states))
    executed = work(width, ran.steps, mixed).sum()
    return Work(executed, executed, adaptive.sum(), full.sum())


def _entry_work(base: PreTrainedConfig) -> float:
    """The map from the embeddings to the states, a token, where their widths differ."""
    embedding = getattr(base, "embedding_size", base.hidden_size)
    return 0.0 if embedding == base.hidden_size else embedding * base.hidden_size


def _block_work(base: PreTrainedConfig, length: Tensor) -> Tensor:
    """One block, a token. T5's heads may add up to another width than its states, and its gate is a third matrix."""
    hidden = base.hidden_size
    inner = next(getattr(base, name) for name in _INNER_NAMES if hasattr(base, name))
    attention = base.num_attention_heads * base.d_kv if hasattr(base, "d_kv") else hidden
    matrices = 3 if getattr(base, "is_gated_act", False) else 2
    return 4 * hidden * attention + 2 * length * attention + matrices * hidden * inner


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
