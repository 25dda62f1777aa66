"""What encoders take, transformers' own among them: words, other inputs, how far they read, what their blocks cost."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from adadepth.errors import ConfigError

# What the feed-forward width is called in the configurations of transformers.
_INNER_NAMES = ("intermediate_size", "encoder_ffn_dim", "d_ff", "hidden_dim")


def longest_sequence(base: PreTrainedModel) -> int | None:
    """The most tokens that a base has positions for; None where they are relative."""
    for name, module in base.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith(("position_embeddings", "embed_positions")):
            # RoBERTa counts from its padding id, BART from 2.
            first = getattr(module, "offset", 0) if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - first
    return None


def vocabulary_size(base: PreTrainedModel) -> int | None:
    """The number of pieces that a base has embeddings for; None where it has no table of them."""
    table = base.get_input_embeddings()
    return table.num_embeddings if isinstance(table, nn.Embedding) else None


def accepted_inputs(base: PreTrainedModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that a base knows; segments only where it has more than one kind of them."""
    known = set(inspect.signature(base.forward).parameters)
    if getattr(base.config, "type_vocab_size", 2) < 2:
        known.discard("token_type_ids")
    return {name: value for name, value in inputs.items() if value is not None and name in known}


def entry_work(base: PreTrainedConfig) -> float:
    """The map from the embeddings to the states, a token, where their widths differ."""
    embedding = getattr(base, "embedding_size", base.hidden_size)
    return 0.0 if embedding == base.hidden_size else embedding * base.hidden_size


def block_work(base: PreTrainedConfig, length: Tensor) -> Tensor:
    """One block, a token. T5's heads may add up to another width than its states, and its gate is a third matrix.

    Raises:
        ConfigError: If the configuration does not say how wide the feed-forward part is.
    """
    hidden = base.hidden_size
    inner = next((getattr(base, name) for name in _INNER_NAMES if hasattr(base, name)), None)
    if inner is None:
        known = ", ".join(_INNER_NAMES)
        raise ConfigError(f"model_type={base.model_type}: its work is unknown, since it says none of {known}")
    attention = base.num_attention_heads * base.d_kv if hasattr(base, "d_kv") else hidden
    matrices = 3 if getattr(base, "is_gated_act", False) else 2
    return 4 * hidden * attention + 2 * length * attention + matrices * hidden * inner


def check_words(words: Tensor, table: nn.Module) -> None:
    """Refuse a batch without a token, and on a CPU numbers of words that there are not.

    To look at numbers on an accelerator would hold it up in every step; there its own assertion tells.

    Args:
        words: Ids (B, T), or embeddings (B, T, E).
        table: The model's word embeddings; one that does not say how many there are is asked nothing.

    Raises:
        ValueError: Naming what is wrong.
    """
    if words.numel() == 0:
        raise ValueError(f"input of shape {tuple(words.shape)}: needed is at least one sequence of at least one token")
    known = getattr(table, "num_embeddings", None)
    if known is None or words.is_floating_point() or words.device.type != "cpu" or torch.compiler.is_compiling():
        return
    low, high = words.aminmax()
    if low < 0 or high >= known:
        raise ValueError(f"input_ids from {int(low)} to {int(high)}: must be from 0 to {known - 1}")
