"""Properties of base encoders, from this package or transformers: accepted inputs, length limits, MACs per block."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from adadepth.errors import ConfigError

# Names of the feed-forward width in configurations of transformers.
_INNER_NAMES = ("intermediate_size", "encoder_ffn_dim", "d_ff", "hidden_dim")


def longest_sequence(base: PreTrainedModel) -> int | None:
    """Return the maximum sequence length of an encoder in tokens, or None for relative positions."""
    for name, module in base.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith(("position_embeddings", "embed_positions")):
            # RoBERTa counts from its padding id, BART from 2.
            first = getattr(module, "offset", 0) if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - first
    return None


def vocabulary_size(base: PreTrainedModel) -> int | None:
    """Return the number of tokens in an encoder's embedding table, or None if it has none."""
    table = base.get_input_embeddings()
    return table.num_embeddings if isinstance(table, nn.Embedding) else None


def select_accepted_inputs(base: PreTrainedModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Select the batch entries that an encoder accepts. Segment ids require more than one segment type."""
    names = set(inspect.signature(base.forward).parameters)
    if getattr(base.config, "type_vocab_size", 2) < 2:
        names.discard("token_type_ids")
    return {name: value for name, value in inputs.items() if value is not None and name in names}


def compute_entry_macs(base: PreTrainedConfig) -> float:
    """Return the MACs per token of projecting embeddings to the hidden size, or 0 if the sizes are equal."""
    embedding = getattr(base, "embedding_size", base.hidden_size)
    return 0.0 if embedding == base.hidden_size else embedding * base.hidden_size


def compute_block_macs(base: PreTrainedConfig, length: Tensor) -> Tensor:
    """Return the multiply-accumulates (MACs) per token of one transformer block.

    In T5, the total width of the attention heads may differ from that of the states. A gated feed-forward layer of T5
    has a third matrix.

    Raises:
        ConfigError: If the configuration has no feed-forward width.
    """
    hidden = base.hidden_size
    inner = next((getattr(base, name) for name in _INNER_NAMES if hasattr(base, name)), None)
    if inner is None:
        names = ", ".join(_INNER_NAMES)
        raise ConfigError(f"model_type={base.model_type}: its compute is unknown, because it declares none of {names}")
    attention = base.num_attention_heads * base.d_kv if hasattr(base, "d_kv") else hidden
    matrices = 3 if getattr(base, "is_gated_act", False) else 2
    return 4 * hidden * attention + 2 * length * attention + matrices * hidden * inner


def check_words(words: Tensor, table: nn.Module) -> None:
    """Raise an error for a batch without tokens and, on a CPU, for token ids outside of the vocabulary.

    On an accelerator, checking ids would synchronise in every step. The accelerator has its own assertion for such ids.

    Args:
        words: Ids (B, T), or embeddings (B, T, E).
        table: Word embeddings of the model. If they have no size, ids are not checked.

    Raises:
        ValueError: States the error in the words.
    """
    if words.numel() == 0:
        raise ValueError(f"input of shape {tuple(words.shape)}: must have at least one sequence of at least one token")
    size = getattr(table, "num_embeddings", None)
    if size is None or words.is_floating_point() or words.device.type != "cpu" or torch.compiler.is_compiling():
        return
    low, high = words.aminmax()
    if low < 0 or high >= size:
        raise ValueError(f"input_ids from {int(low)} to {int(high)}: must be from 0 to {size - 1}")


def find_real_tokens(mask: Any, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return a mask of the new tokens that are not padding, boolean (B, T).

    Args:
        mask: 1 at real tokens, those in a cache included, (B, M + T); masks of another form mask no padding.
        shape: B and T.
        device: Device of the tokens.
    """
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask[:, -shape[1] :].bool()
    return torch.ones(*shape, dtype=torch.bool, device=device)


def mean_of_tokens(states: Tensor, real: Tensor) -> Tensor:
    """Return the mean state over the real tokens of each row, (B, H), or 0 if it has none.

    The fine-tuning of Simoulin & Crabbé calls this `use_bos=False`, and includes padding in the mean.
    """
    real_states = states.masked_fill(~real.unsqueeze(-1), 0.0)  # states at padding may be NaN
    return real_states.sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)


def find_last_tokens(real: Tensor) -> Tensor:
    """Return the index of the last real token of each row, int64 (B,), from the mask of real tokens, (B, T)."""
    return real.shape[1] - 1 - real.flip(1).long().argmax(dim=1)
