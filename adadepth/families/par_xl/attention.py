"""Attention with relative positions, and what generation keeps of the text so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from adadepth.errors import ConfigError, DataError
from adadepth.families.par_xl.adaptive_softmax import as_one
from adadepth.families.par_xl.configuration import ParXLConfig
from adadepth.families.shared.albert.block import eager_attention
from adadepth.families.shared.layers import Product, sinusoidal_positions


class ParXLCache(DynamicCache):
    """Keys and values of the last M positions of every block that attends, and its projected distances W_R r.

    Keys and values of a position never change, so they are what Transformer-XL would compute from the states that it
    remembers (Dai et al. 2019). A network without memory, M = 0, keeps all positions.

    Args:
        config: Of the network.
        memory_length: M; None: as configured.
    """

    def __init__(self, config: ParXLConfig, memory_length: int | None = None) -> None:
        kept = config.memory_length if memory_length is None else memory_length
        # A window of transformers holds the token itself, too.
        layers: list[Any] = [DynamicSlidingWindowLayer(kept + 1) if kept else DynamicLayer() for _ in config.attending]
        Cache.__init__(self, layers=layers)
        self._distances: dict[int, Tensor] = {}

    def distances(self, layer: int, codes: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """The projected codes of the distances L to 0, (L + 1, d); those that it knows are not projected again."""
        known = self._distances.get(layer)
        missing = len(codes) - (0 if known is None else len(known))
        if missing > 0:
            new = project(codes[:missing])
            known = self._distances[layer] = new if known is None else torch.cat([new, known])
        assert known is not None
        return known[-len(codes) :]

    def reset(self) -> None:
        """Forget the text, and the distances: the weights may be others next time."""
        super().reset()
        self._distances.clear()


def check_cache(cache: Cache) -> None:
    """Refuse a cache of fixed size.

    Raises:
        DataError: Naming its class.
    """
    if cache.is_compileable:
        raise DataError(f"past_key_values={type(cache).__name__}: needed is a cache that grows, such as ParXLCache")


def check_implementation(name: str | None) -> None:
    """Refuse a cache that `generate` would make instead of a `ParXLCache`.

    Raises:
        ConfigError: Naming it.
    """
    if name not in (None, "dynamic"):
        raise ConfigError(f"cache_implementation={name}: of par_xl only dynamic is known, or none")


def kept_positions(cache: Cache | None) -> int:
    """How many positions of the text so far attention can see."""
    return 0 if cache is None else cache.get_mask_sizes(0, 0)[0]


_Attend = Callable[..., tuple[Tensor, Tensor | None]]


class Context(NamedTuple):
    """What attention sees: fields of the configuration that a call may replace.

    Attributes:
        memory_length: Positions that are remembered at most.
        clamp_length: Distances beyond this look like this one; None: none is too large.
        same_length: Whether a query sees only the last `memory_length` positions, itself included.
    """

    memory_length: int
    clamp_length: int | None = None
    same_length: bool = False


class Positions(NamedTuple):
    """What all blocks of a forward pass share.

    Attributes:
        codes: Sinusoids of the distances L, L - 1, ..., 0: (L + 1, d). The first is one more than there are: see
            `align_distances`.
        mask: 0 where query i sees key j, -inf elsewhere, (T, L), or of each row of a batch with padding (B, 1, T, L).
        biases: u and v, each (h, d / h), where all blocks share them.
        wants_weights: Whether attention returns its weights, which the fast implementations do not have.
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
    """The codes and the mask of a segment of T = `length` tokens behind M = `remembered` ones, in the states' type.

    `real`, (B, L), says which positions are no padding; what stands at the others is seen by nothing else.
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
        # Padding sees itself: without any key the softmax would be undefined.
        hidden = hidden | (~real.bool()[:, None, None] & (between != 0))
    mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill(hidden, -torch.inf)
    return Positions(codes, mask, biases)


def align_distances(scores: Tensor) -> Tensor:
    """From scores by distance to scores by key: (..., T, L + 1), distances L to 0, to (..., T, L), without a copy.

    Key j of query i is i + M - j away, so that its score is in column j + T - i: row by row, one further left. In
    memory that is the same numbers in rows one shorter, after the first T. What a row takes from the next one lies
    beyond its own position, where the mask hides it.
    """
    length, keys = scores.shape[-2], scores.shape[-1] - 1
    return scores.flatten(-2)[..., length:].unflatten(-1, (length, keys))


def composed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scaling: float, dropout: float
) -> tuple[Tensor, None]:
    """softmax(Q K' / sqrt(d) + bias) V of (B, h, ., d / h), as `eager_attention` in fewer passes; to (B, T, h, d / h).

    A CPU has no kernel for a bias that wants a gradient: torch composes it, and looks for queries without any key, of
    which there are none here.
    """
    scores = torch.baddbmm(bias.flatten(0, 1), query.flatten(0, 1), key.flatten(0, 1).mT, alpha=scaling)
    weights = nn.functional.dropout(scores.softmax(dim=-1), dropout, module.training)
    context = weights @ value.flatten(0, 1)
    return context.unflatten(0, query.shape[:2]).transpose(1, 2), None


class RelativeAttention(nn.Module):
    """Multi-head attention with relative positions and its output projection; the residual belongs to the block."""

    is_causal = False

    def __init__(self, config: ParXLConfig, layer: int = 0) -> None:
        super().__init__()
        width, bias = config.hidden_size, config.projection_bias
        self.config = config
        self.layer = layer  # in the cache
        self.head_size = width // config.num_attention_heads
        self.scaling = 1.0 / (self.head_size if config.attention_scale == "linear" else self.head_size**0.5)
        self.query = Product(width, width, bias)
        self.key_value = Product(width, 2 * width, bias)
        as_one(self.query, self.key_value)
        self.position = Product(width, width, bias)
        self.output = Product(width, width, bias)
        if not config.share_position_bias:
            self.position_bias_u, self.position_bias_v = position_biases(config)
        self.norm = branch_norm(config)

    def forward(
        self, state: Tensor, memory: Tensor | None, positions: Positions, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Attend: state (B, T, d), memory (B, M, d) or None, to (B, T, d), and the weights (B, h, T, L) if wanted."""
        known = state if memory is None else torch.cat([memory, state], dim=1)
        heads = (-1, self.head_size)
        query = self.query(state).unflatten(-1, heads)
        key, value = self.key_value(known).unflatten(-1, (2, *heads)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        bias_u, bias_v = positions.biases or (self.position_bias_u, self.position_bias_v)
        distances = self._distances(positions.codes, cache)
        by_distance = torch.add(
            positions.mask.to(query.dtype), self._distance_scores(query + bias_v, distances), alpha=self.scaling
        )
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        content = (query + bias_u).transpose(1, 2)
        attend = self._implementation(positions, by_distance)
        context, weights = attend(self, content, key, value, by_distance, dropout=dropout, scaling=self.scaling)
        output = self.output(context.reshape(state.shape))
        output = output.relu() if self.config.attention_out_act == "relu" else output
        return output, weights if positions.wants_weights else None

    def _implementation(self, positions: Positions, by_distance: Tensor) -> _Attend:
        """The configured function, or one whose weights or gradients it has not."""
        name = "eager" if positions.wants_weights else self.config._attn_implementation
        if name == "sdpa" and by_distance.requires_grad and by_distance.device.type == "cpu":
            return composed_attention
        found: _Attend = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention)
        return found

    def _distances(self, codes: Tensor, cache: Cache | None) -> Tensor:
        """W_R r of all distances, (L + 1, d)."""
        if isinstance(cache, ParXLCache):
            return cache.distances(self.layer, codes, self.position)
        projected: Tensor = self.position(codes)
        return projected

    def _distance_scores(self, query: Tensor, distances: Tensor) -> Tensor:
        """(q + v) . W_R r by key: queries (B, T, h, d / h) and projected distances (L + 1, d) to (B, h, T, L)."""
        rows, length, heads, _ = query.shape
        distances = distances.unflatten(-1, (heads, -1)).permute(1, 2, 0)
        # Heads first: the distances are the same for all rows, and are not copied for each.
        scores = query.permute(2, 0, 1, 3).flatten(1, 2) @ distances
        return align_distances(scores.unflatten(1, (rows, length)).transpose(0, 1))


def position_biases(config: ParXLConfig) -> tuple[nn.Parameter, nn.Parameter]:
    """The parameters u and v, each (h, d / h)."""
    shape = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    return nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))


def branch_norm(config: ParXLConfig) -> nn.LayerNorm | None:
    """The norm of a branch, where each has one of its own."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.branch_norm == "per_branch" else None
