"""Network of tiny recursive models (TRM): attention or mixing over positions, gated feed-forward layers, norms."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from adadepth.models.shared.layers import Product
from adadepth.models.trm.configuration import TrmConfig

EPSILON = 1e-5


class SwiGlu(nn.Module):
    """Gated feed-forward layer W_down (silu(W_gate u) * W_up u).

    One matrix product computes both W_gate u and W_up u.
    """

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = Product(width, 2 * inner, bias=False)
        self.down_proj = Product(inner, width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Apply the layer to states, (..., width)."""
        gate, up = self.gate_up_proj(states).chunk(2, dim=-1)
        mixed: Tensor = self.down_proj(functional.silu(gate) * up)
        return mixed


class SelfAttention(nn.Module):
    """Bidirectional self-attention, without a mask."""

    def __init__(self, config: TrmConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv_proj = Product(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.o_proj = Product(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        """Apply the module to states, (B, S, D)."""
        batch, length, width = states.shape
        query, key, value = self.qkv_proj(states).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if rotation is not None:
            query, key = rotate_heads(query, rotation), rotate_heads(key, rotation)
        attended = functional.scaled_dot_product_attention(query, key, value)
        mixed: Tensor = self.o_proj(attended.transpose(1, 2).reshape(batch, length, width))
        return mixed


class Block(GradientCheckpointingLayer):
    """Block of attention or an MLP over positions, then an MLP over features, each with residual and norm."""

    def __init__(self, config: TrmConfig) -> None:
        super().__init__()
        self.mixes_positions = config.mixing == "positions"
        if self.mixes_positions:
            self.mlp_t = SwiGlu(config.length, config.mixing_width)
        else:
            self.self_attn = SelfAttention(config)
        self.mlp = SwiGlu(config.hidden_size, config.inner_width)

    def forward(self, states: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        """Apply the block to states, (B, S, D). Mixing over positions also normalises over positions."""
        if self.mixes_positions:
            transposed = states.transpose(1, 2)
            states = rms(transposed + self.mlp_t(transposed)).transpose(1, 2)
        else:
            states = rms(states + self.self_attn(states, rotation))
        return rms(states + self.mlp(states))


class Network(nn.Module):
    """Network of all blocks, which one step applies many times.

    The sum of states that it reads determines whether it updates the reasoning or the answer.
    """

    def __init__(self, config: TrmConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(config) for _ in range(num_layers))

    def forward(self, states: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        """Apply the module to states, (B, S, D)."""
        for layer in self.layers:
            states = layer(states, rotation)
        return states


def rms(states: Tensor) -> Tensor:
    """Normalise states u by the root mean square sqrt(mean u^2 + eps) of the last dimension, in float32 or wider."""
    precise = states.to(torch.promote_types(states.dtype, torch.float32))
    return functional.rms_norm(precise, states.shape[-1:], eps=EPSILON).to(states.dtype)


def rotations(length: int, width: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of rotary position embeddings (Su et al. 2021), float32, (S, width) each."""
    frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate_heads(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary position embeddings to queries or keys, (B, h, S, d)."""
    cosines, sines = rotation
    first, second = heads.chunk(2, dim=-1)
    return (heads * cosines + torch.cat([-second, first], dim=-1) * sines).to(heads.dtype)


@torch.no_grad()
def init_truncated_normal(weight: Tensor, deviation: float) -> None:
    """Initialise a tensor from a normal distribution truncated at two standard deviations, as in JAX.

    The distribution is scaled so that the standard deviation of the result is `deviation`.
    """
    cut = math.erf(math.sqrt(2.0))  # the mass within two standard deviations
    density = math.exp(-2.0) / math.sqrt(2.0 * math.pi)
    width = deviation / math.sqrt(1.0 - 4.0 * density / cut)
    init.trunc_normal_(weight, std=width, a=-2.0 * width, b=2.0 * width)
