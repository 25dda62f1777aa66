"""State of a batch in the course of the loops, and stacks of layers that read it.

Shape legend: B rows, T new tokens, M tokens in the cache, D width, S width of the state (D, or 2 D with a low-level
stack), h heads, N loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from adadepth.errors import ConfigError
from adadepth.models.depth.subset import TokenSubset
from adadepth.models.looped.cache import LoopedCache
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.looped.loop_adapters import LoopProduct
from adadepth.models.shared.cache_argument import CACHE_ARGUMENT

_BIDIRECTIONAL = ("eager", "sdpa", "flex_attention")  # attention implementations with masks of any form


class CacheLayerView:
    """View of a key-value cache for one layer, which replaces the layer's index by its index in the cache."""

    def __init__(self, cache: Cache, number: int) -> None:
        self._cache, self._number = cache, number

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Append keys and values, (B, h, T, d) each, and return those of all tokens, (B, h, M + T, d) each."""
        return self._cache.update(keys, values, self._number, *args, **kwargs)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number M of tokens in the cache."""
        return self._cache.get_seq_length(self._number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


@dataclass
class Looping:
    """State of a batch in the course of the loops: hidden states, positions, masks, cache and loop count.

    Attributes:
        embedded: Output e of the prelude, (B, T, D).
        state: State s_n, (B, T, S). With a low-level stack, its last D values are those of the low-level state.
        normed: State s_n after the final norm, (B, T, D), or None before the first loop.
        positions: Positions of the new tokens, int64, (B, T).
        masks: Attention masks by kind of layer, or one mask for all layers.
        rotation: Cosines and sines of the positions.
        cache: Keys and values of earlier tokens, or None if there are none and none are stored.
        loops: Number N of loops of this forward pass.
        done: Number n of completed loops.
        counts: Number of loops of each row, int64 (B,), if rows train with different numbers, else None.
        fewest: Least of these numbers, if rows train with different numbers, else None.
        kinds: Kind of mask of every layer, if layers have different kinds.
        running: Mask of the tokens that have not exited, boolean (B, T) on the CPU, if the cache policy stops exited
            tokens, else None.
        picked: The same tokens, or None for all tokens.
        readings: Last head input r of each token, (B, T, D), if `running` is set.
        computed: Number of queries, keys and query-key pairs of every loop, if `running` is set.
    """

    embedded: Tensor
    state: Tensor
    normed: Tensor | None
    positions: Tensor
    masks: Any
    rotation: Any
    cache: Cache | None
    loops: int
    done: int = 0
    counts: Tensor | None = None
    fewest: int | None = None
    kinds: list[str] | None = None
    running: Tensor | None = None
    picked: TokenSubset | None = None
    readings: Tensor | None = None
    computed: list[tuple[int, int, int]] = field(default_factory=list)


class Layers(nn.ModuleList, GradientCheckpointingLayer):
    """Consecutive layers with joint gradient checkpointing, which stores only their common input.

    Attributes:
        loop_products: Linear layers with a low-rank change in every loop.
    """

    def __init__(self, layers: Iterable[nn.Module] = ()) -> None:
        super().__init__(layers)
        self.loop_products: list[LoopProduct] = []

    def forward(
        self, states: Tensor, queries: Tensor | None, run: Looping, first: int, cached: int, loop: int = 0
    ) -> Tensor:
        """Apply the layers to states, (B, T, D).

        Args:
            states: Input of the first layer.
            queries: Input of the attention queries, or None for the states.
            run: State of the batch.
            first: Index of the first of these layers among prelude, the layers that a token passes in a loop, and coda.
            cached: Index of the first of these layers in a cache of all loops.
            loop: Number of earlier loops, which selects the low-rank changes of `loop_lora_rank`.
        """
        for product in self.loop_products:
            product.loop = loop
        more = {} if queries is None else {"queries": queries}
        for number, layer in enumerate(self):
            states = layer(
                states,
                attention_mask=run.masks[run.kinds[first + number]] if run.kinds else run.masks,
                position_embeddings=run.rotation,
                position_ids=run.positions,
                use_cache=run.cache is not None,
                **{CACHE_ARGUMENT: _view_layer(run.cache, cached + number, first + number)},
                **more,
            )
        return states


def _view_layer(cache: Cache | None, cached: int, layer: int) -> CacheLayerView | None:
    """Return a view of the cache for one layer.

    A `LoopedCache` has one cache layer for all loops of a layer. Other caches have one for each loop.
    """
    if cache is None:
        return None
    return CacheLayerView(cache, layer if isinstance(cache, LoopedCache) else cached)


def build_part(layers: Sequence[nn.Module]) -> nn.ModuleList:
    """Build the layers of one part of the model: prelude, core or coda."""
    return Layers(layers) if layers else nn.ModuleList()


def find_prefix_blocks(config: LoopedConfig, token_type_ids: Tensor | None) -> Tensor | None:
    """Return block ids for transformers' masks, (B, T): 0 at tokens of type 1, which see each other, -1 at others.

    The result is None without token types.

    Raises:
        ConfigError: If the model is not a PrefixLM, or the attention implementation supports causal masks only.
    """
    if token_type_ids is None:
        return None
    if not config.prefix_lm:
        raise ConfigError("token_type_ids: only models with prefix_lm=true accept them")
    if config._attn_implementation not in _BIDIRECTIONAL:
        raise ConfigError(
            f"attn_implementation={config._attn_implementation}: token_type_ids need one of {', '.join(_BIDIRECTIONAL)}"
        )
    return torch.where(token_type_ids == 1, 0, -1)
