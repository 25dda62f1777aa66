"""Layers of looped models: attention and a gated feed-forward layer, with configurable positions of the norms.

Shape legend: B rows, T new tokens, M tokens in the cache, D width, h heads of width d.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from adadepth.errors import ConfigError
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.shared.generation import accept_former_name
from adadepth.models.shared.layers import Product


def rotation_tables(config: LoopedConfig, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of theta^(-2i/d) p for rotary position embeddings, (B, T, d/2) each (Su et al. 2021)."""
    width = config.width_of_head
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width
    angles = positions.unsqueeze(-1).float() * config.rope_theta**-exponents
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate_by_position(heads: Tensor, rotation: tuple[Tensor, Tensor], pairs: bool) -> Tensor:
    """Apply rotary position embeddings to heads, (B, h, T, d): rotate feature i with i + 1 (`pairs`) or i + d/2."""
    cosines, sines = (table.unsqueeze(1) for table in rotation)
    first, second = (heads[..., 0::2], heads[..., 1::2]) if pairs else heads.chunk(2, dim=-1)
    rotated = first * cosines - second * sines, second * cosines + first * sines
    return torch.stack(rotated, dim=-1).flatten(-2) if pairs else torch.cat(rotated, dim=-1)


class LoopedAttention(nn.Module):
    """Causal self-attention with rotary position embeddings."""

    is_causal = True

    def __init__(self, config: LoopedConfig, layer_idx: int) -> None:
        super().__init__()
        heads, shared, width = config.num_attention_heads, config.key_value_heads, config.width_of_head
        self.config, self.layer_idx, self.head_dim = config, layer_idx, width
        self.num_key_value_groups, self.scaling = heads // shared, width**-0.5
        self.q_proj = Product(config.hidden_size, heads * width, bias=config.qk_bias)
        self.k_proj = Product(config.hidden_size, shared * width, bias=config.qk_bias)
        self.v_proj = Product(config.hidden_size, shared * width, bias=False)
        self.o_proj = Product(heads * width, config.hidden_size, bias=False)
        if config.attention_gate:
            self.gate_proj = Product(config.hidden_size, heads * width, bias=False)

    def forward(
        self,
        states: Tensor,
        queries: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Any,
        cache: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Return the attention output, (B, T, D).

        Keys and values are computed from `states`, and queries from `queries`, (B, T, D) each. With `attention_gate`,
        the output of the heads is multiplied by sigmoid(W_gate u), where u are the states.
        """
        query = rotate_by_position(self._heads(self.q_proj(queries)), rotation, self.config.rope_pairs)
        key, value = self.compute_keys_and_values(states, rotation)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        window = self.config.sliding_window
        attended, _ = attend(
            self, query, key, value, mask, dropout=0.0, scaling=self.scaling, sliding_window=window, **kwargs
        )
        heads = attended.flatten(-2)
        if self.config.attention_gate:
            heads = torch.sigmoid(self.gate_proj(states)) * heads
        mixed: Tensor = self.o_proj(heads)
        return mixed

    def compute_keys_and_values(self, states: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the keys and values, (B, h, T, d) each, of states, (B, T, D)."""
        key, value = self._heads(self.k_proj(states)), self._heads(self.v_proj(states))
        return rotate_by_position(key, rotation, self.config.rope_pairs), value

    def _heads(self, features: Tensor) -> Tensor:
        return features.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class GatedMlp(nn.Module):
    """Gated feed-forward layer W_down (act(W_gate u) * W_up u)."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.gate_proj = Product(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = Product(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = Product(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, states: Tensor) -> Tensor:
        """Apply the layer to states, (..., D)."""
        mixed: Tensor = self.down_proj(self.activation(self.gate_proj(states)) * self.up_proj(states))
        return mixed


class LoopedLayer(nn.Module):
    """Decoder layer with the interface of transformers' layers and configurable positions of the norms."""

    def __init__(self, config: LoopedConfig, layer_idx: int) -> None:
        super().__init__()
        self.norms = config.norms
        self.self_attn = LoopedAttention(config, layer_idx)
        self.mlp = GatedMlp(config)
        self.attention_norm, self.mlp_norm = build_norm(config), build_norm(config)
        if self.norms != "pre":
            self.attention_post_norm, self.mlp_post_norm = build_norm(config), build_norm(config)

    @accept_former_name
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        cache: Any = None,
        queries: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Apply the layer to states, (B, T, D).

        Attention queries are computed from `queries`, by default the states.
        """
        assert position_embeddings is not None
        normed = self.attention_norm(hidden_states)
        querying = normed if queries is None else self.attention_norm(queries)
        attended = self.self_attn(normed, querying, position_embeddings, attention_mask, cache, **kwargs)
        states = self._add(hidden_states, attended, "attention_post_norm")
        return self._add(states, self.mlp(self.mlp_norm(states)), "mlp_post_norm")

    def compute_keys_and_values(self, hidden_states: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the keys and values, (B, h, T, d) each, for the layer's input, (B, T, D)."""
        return self.self_attn.compute_keys_and_values(self.attention_norm(hidden_states), rotation)

    def _add(self, states: Tensor, branch: Tensor, norm: str) -> Tensor:
        if self.norms == "pre":
            return states + branch
        post_norm = getattr(self, norm)
        summed: Tensor = post_norm(states + branch) if self.norms == "sandwich" else states + post_norm(branch)
        return summed


def build_norm(config: LoopedConfig) -> nn.RMSNorm:
    """Create the configured norm for states of width D."""
    return nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps, elementwise_affine=config.norm_weights)


class LanguageModelHead(Product):
    """Head of a language model, f W r, or c tanh(f W r / c) if the decoder bounds its logits by c (Gemma 2).

    The factor f is 1, unless the layers are those of a decoder with another one (Cohere, Granite).
    """

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config.hidden_size, config.vocab_size, bias=False)
        self.cap, self.factor = config.logit_cap, config.logit_factor

    def forward(self, states: Tensor) -> Tensor:
        """Return the logits of states, (..., D) to (..., V)."""
        logits: Tensor = super().forward(states)
        logits = logits if self.factor == 1.0 else logits * self.factor
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


_STOCK = ("embed_tokens", "layers", "norm", "rotary_emb")


def build_decoder_parts(config: LoopedConfig) -> tuple[Any, nn.ModuleList, Any, Any]:
    """Build the embedding, layers, final norm and rotary positions of transformers' decoder with random weights.

    Raises:
        ConfigError: If the decoder has no such parts.
    """
    base = config.base_config
    assert isinstance(base, PreTrainedConfig)
    decoder = AutoModel.from_config(base, attn_implementation=config._attn_implementation)
    if missing := [name for name in _STOCK if not hasattr(decoder, name)]:
        raise ConfigError(f"base_config: a {base.model_type} has no {missing[0]}, so its layers cannot be looped")
    config.base_config = decoder.config  # that of the layers: `attn_implementation` then has one owner
    return tuple(getattr(decoder, name) for name in _STOCK)
