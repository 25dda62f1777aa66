"""Attention with relative positions (Transformer-XL), and the key-value cache for generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from adadepth.errors import ConfigError, DataError
from adadepth.models.par_xl.adaptive_softmax import mark_as_one_matrix
from adadepth.models.par_xl.configuration import ParXLConfig
from adadepth.models.shared.albert.block import eager_attention
from adadepth.models.shared.layers import Product, sinusoidal_positions


class ParXLCache(DynamicCache):
    """Key-value cache of the last M positions for every attention block, with projected distance encodings W_R r.

    Keys and values of a position never change. They therefore equal those that Transformer-XL computes from its memory
    of states (Dai et al. 2019). A network without memory, M = 0, stores all positions.

    Args:
        config: Configuration of the network.
        memory_length: Number M of positions, or None for that of the configuration.
    """

    def __init__(self, config: ParXLConfig, memory_length: int | None = None) -> None:
        length = config.memory_length if memory_length is None else memory_length
        # A window of transformers includes the token itself.
        layers: list[Any] = [
            DynamicSlidingWindowLayer(length + 1) if length else DynamicLayer() for _ in config.attending
        ]
        Cache.__init__(self, layers=layers)
        self._distances: dict[int, Tensor] = {}

    def distances(self, layer: int, codes: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the projected encodings of the distances L to 0, (L + 1, d), reusing earlier results."""
        cached = self._distances.get(layer)
        missing = len(codes) - (0 if cached is None else len(cached))
        if missing > 0:
            new = project(codes[:missing])
            cached = self._distances[layer] = new if cached is None else torch.cat([new, cached])
        assert cached is not None
        return cached[-len(codes) :]

    def reset(self) -> None:
        """Clear the cached text and distance encodings, because weights may change before the next text."""
        super().reset()
        self._distances.clear()


def check_cache(cache: Cache) -> None:
    """Raise an error if a key-value cache has a fixed size, which this family does not support.

    Raises:
        DataError: Names the class of the cache.
    """
    if cache.is_compileable:
        raise DataError(f"cache={type(cache).__name__}: must be a dynamic cache, such as ParXLCache")


def check_implementation(name: str | None) -> None:
    """Raise an error if a cache implementation other than `ParXLCache` is requested by name.

    Raises:
        ConfigError: Names the implementation.
    """
    if name not in (None, "dynamic"):
        raise ConfigError(f"cache_implementation={name}: par_xl supports only dynamic, or none")


def count_cached_positions(cache: Cache | None) -> int:
    """Return the number of cached positions that queries can attend to."""
    return 0 if cache is None else cache.get_mask_sizes(0, 0)[0]


_Attend = Callable[..., tuple[Tensor, Tensor | None]]


class Context(NamedTuple):
    """Limits of attention in one forward pass (memory length, distances), instead of the configured ones.

    Attributes:
        memory_length: Maximum number of memory positions.
        clamp_length: Maximum distance, to which larger distances are clamped, or None for no limit.
        same_length: Whether a query sees only the last `memory_length` positions, itself included.
    """

    memory_length: int
    clamp_length: int | None = None
    same_length: bool = False


class Positions(NamedTuple):
    """Relative positions and masks that all attention blocks of a forward pass share.

    Attributes:
        codes: Sinusoids of the distances L, L - 1, ..., 0, (L + 1, d). Only `align_distances` needs the distance L.
        mask: 0 where query i sees key j, else -inf, (T, L), or (B, 1, T, L) for a batch with padding.
        biases: Biases u and v, (h, d / h) each, if all blocks share them.
        wants_weights: Whether attention returns its weights. Fast implementations do not compute them.
    """

    codes: Tensor
    mask: Tensor
    biases: tuple[Tensor, Tensor] | None
    wants_weights: bool = False


def relative_positions(
    length: int,
    remembered: int,
    context: Context,
    like: Tensor,
    biases: tuple[Tensor, Tensor] | None = None,
    real: Tensor | None = None,
) -> Positions:
    """Return the distance encodings and the mask for T = `length` new tokens after M = `remembered` positions.

    `real`, (B, L), is the mask of positions that are not padding. A padding position is visible only to itself.
    """
    keys, farthest = remembered + length, context.clamp_length
    reach = keys if farthest is None else min(keys, farthest)
    distances = torch.arange(keys, -1, -1, device=like.device).clamp(max=reach)
    codes = sinusoidal_positions(reach + 1, like)[distances]
    here = torch.arange(remembered, keys, device=like.device)
    between = here.unsqueeze(1) - torch.arange(keys, device=like.device)
    hidden = between < 0
    if context.same_length:
        hidden |= between >= max(context.memory_length, 1)
    if real is not None:
        # Padding sees itself, since a softmax without keys is undefined.
        hidden = hidden | (~real.bool()[:, None, None] & (between != 0))
    mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill(hidden, -torch.inf)
    return Positions(codes, mask, biases)


def align_distances(scores: Tensor) -> Tensor:
    """Shift scores by distance, (..., T, L + 1), to scores by key, (..., T, L), without a copy.

    Key j has the distance i + M - j from query i, so its score is in column j + T - i. This column moves left by one
    per row. In memory, the result is therefore the same numbers without the first T, in rows that are one number
    shorter. A row also contains numbers of the next row, but they are beyond its position and masked.
    """
    length, keys = scores.shape[-2], scores.shape[-1] - 1
    return scores.flatten(-2)[..., length:].unflatten(-1, (length, keys))


def compose_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scaling: float, dropout: float
) -> tuple[Tensor, None]:
    """Compute softmax(Q K' / sqrt(d) + bias) V, (B, T, h, d / h), in few passes over memory.

    torch has no CPU kernel for a bias with a gradient. It composes the operation and checks for queries without keys,
    which do not occur here.
    """
    scores = torch.baddbmm(bias.flatten(0, 1), query.flatten(0, 1), key.flatten(0, 1).mT, alpha=scaling)
    weights = nn.functional.dropout(scores.softmax(dim=-1), dropout, module.training)
    context = weights @ value.flatten(0, 1)
    return context.unflatten(0, query.shape[:2]).transpose(1, 2), None


class RelativeAttention(nn.Module):
    """Multi-head attention with relative positions and output projection, without the residual connection."""

    is_causal = False

    def __init__(self, config: ParXLConfig, layer: int = 0) -> None:
        super().__init__()
        width, bias = config.hidden_size, config.projection_bias
        self.config = config
        self.layer = layer  # number in the cache
        self.head_size = width // config.num_attention_heads
        self.scaling = 1.0 / (self.head_size if config.attention_scale == "linear" else self.head_size**0.5)
        self.query = Product(width, width, bias)
        self.key_value = Product(width, 2 * width, bias)
        mark_as_one_matrix(self.query, self.key_value)
        self.position = Product(width, width, bias)
        self.output = Product(width, width, bias)
        if not config.share_position_bias:
            self.position_bias_u, self.position_bias_v = position_biases(config)
        self.norm = branch_norm(config)

    def forward(
        self, state: Tensor, memory: Tensor | None, positions: Positions, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention output, (B, T, d), and the attention weights, (B, h, T, L) or None if not requested.

        `state` is (B, T, d), and `memory` is (B, M, d) or None.
        """
        context_states = state if memory is None else torch.cat([memory, state], dim=1)
        heads = (-1, self.head_size)
        query = self.query(state).unflatten(-1, heads)
        key, value = self.key_value(context_states).unflatten(-1, (2, *heads)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        bias_u, bias_v = positions.biases or (self.position_bias_u, self.position_bias_v)
        distances = self._project_distances(positions.codes, cache)
        by_distance = torch.add(
            positions.mask.to(query.dtype), self._score_distances(query + bias_v, distances), alpha=self.scaling
        )
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        content = (query + bias_u).transpose(1, 2)
        attend = self._choose_implementation(positions, by_distance)
        context, weights = attend(self, content, key, value, by_distance, dropout=dropout, scaling=self.scaling)
        output = self.output(context.reshape(state.shape))
        output = output.relu() if self.config.attention_out_act == "relu" else output
        return output, weights if positions.wants_weights else None

    def _choose_implementation(self, positions: Positions, by_distance: Tensor) -> _Attend:
        """Return the configured attention function, or one that can compute what this call needs."""
        name = "eager" if positions.wants_weights else self.config._attn_implementation
        if name == "sdpa" and by_distance.requires_grad and by_distance.device.type == "cpu":
            return compose_attention
        attend: _Attend = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention)
        return attend

    def _project_distances(self, codes: Tensor, cache: Cache | None) -> Tensor:
        """Compute the projected encodings W_R r of all distances, (L + 1, d)."""
        if isinstance(cache, ParXLCache):
            return cache.distances(self.layer, codes, self.position)
        projected: Tensor = self.position(codes)
        return projected

    def _score_distances(self, query: Tensor, distances: Tensor) -> Tensor:
        """Compute the position scores (q + v) . W_R r for every key, (B, h, T, L).

        Queries are (B, T, h, d / h), and distances are (L + 1, d).
        """
        rows, length, heads, _ = query.shape
        distances = distances.unflatten(-1, (heads, -1)).permute(1, 2, 0)
        # Heads first, so that the distances are not copied for each row.
        scores = query.permute(2, 0, 1, 3).flatten(1, 2) @ distances
        return align_distances(scores.unflatten(1, (rows, length)).transpose(0, 1))


def position_biases(config: ParXLConfig) -> tuple[nn.Parameter, nn.Parameter]:
    """Create the bias parameters u and v of relative attention, (h, d / h) each."""
    shape = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    return nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))


def branch_norm(config: ParXLConfig) -> nn.LayerNorm | None:
    """Create the layer norm of one operation in a block, or return None if all operations share one."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.branch_norm == "per_branch" else None
