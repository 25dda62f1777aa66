"""State of a batch in the course of the loops, stacks of layers that read it, and token compaction.

With a cache policy other than `all`, each loop computes only the tokens that have not exited. Before each loop, the
tokens that still run are gathered from the batch. After the loop, their states are scattered back. Tokens that have
exited keep their state. Other tokens attend to them as the cache policy defines (see `adadepth.models.looped.cache`).
The result of a token does not depend on which other tokens are selected, because each is only another row or column of
the same matrix products.

Shape legend: B rows, T new tokens, M tokens in the cache, D width, S width of the state (D, or 2 D with a low-level
stack), h heads of width d, N loops, R rows that still run and r columns of the fullest of them, K tokens that exit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from adadepth.errors import ConfigError
from adadepth.models.depth.cache import LayerView, compute_keys_and_values
from adadepth.models.depth.subset import TokenSubset
from adadepth.models.looped.cache import LoopedCache
from adadepth.models.looped.configuration import LoopedConfig
from adadepth.models.looped.loop_adapters import LoopProduct
from adadepth.models.shared.encoders import find_real_tokens
from adadepth.models.shared.generation import CACHE_ARGUMENT

_BIDIRECTIONAL = ("eager", "sdpa", "flex_attention")  # attention implementations with masks of any form


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
        cache: Keys and values of earlier tokens, a `Cache`, or None if there are none and none are stored.
        loops: Number N of loops of this forward pass.
        done: Number n of completed loops.
        counts: Number of loops of each row, int64 (B,), if rows train with different numbers, else None.
        fewest: Least of these numbers, if rows train with different numbers, else None.
        kinds: Kind of mask of every layer, if layers have different kinds.
        running: Mask of the tokens that have not exited, boolean (B, T) on the CPU, if the cache policy stops exited
            tokens, else None.
        picked: The same tokens, or None for all tokens.
        selected: Inputs of the layers for these tokens, by the identity of those of all tokens.
        readings: Last head input r of each token, (B, T, D), if `running` is set.
        computed: Number of queries, keys and query-key pairs of every loop, if `running` is set.
    """

    embedded: Tensor
    state: Tensor
    normed: Tensor | None
    positions: Tensor
    masks: Any
    rotation: Any
    cache: Any
    loops: int
    done: int = 0
    counts: Tensor | None = None
    fewest: int | None = None
    kinds: list[str] | None = None
    running: Tensor | None = None
    picked: TokenSubset | None = None
    selected: dict[int, Any] = field(default_factory=dict)
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


def _view_layer(cache: Cache | None, cached: int, layer: int) -> LayerView | None:
    """Return a view of the cache for one layer.

    A `LoopedCache` has one cache layer for all loops of a layer. Other caches have one for each loop.
    """
    if cache is None:
        return None
    return LayerView(cache, layer if isinstance(cache, LoopedCache) else cached)


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


# ---- Token compaction

_COMPACTED = ("eager", "sdpa")


def begin_running(cache: LoopedCache, shape: torch.Size, loops: int, mask: Any, attention: str | None) -> Tensor:
    """Prepare the cache for a forward pass, and return a mask of the tokens that are not padding, boolean (B, T).

    The mask is on the CPU: the host plans every loop from it, and no layer waits for the device.

    Raises:
        ConfigError: If the attention implementation does not support masks for selected tokens.
    """
    if attention not in _COMPACTED:
        raise ConfigError(
            f"attn_implementation={attention}: cache_policy={cache.policy} needs one of {', '.join(_COMPACTED)}"
        )
    cache.check_loops(loops)
    cache.open(shape[0], shape[1])
    return find_real_tokens(mask, shape, torch.device("cpu")).cpu()


def set_running(run: Looping, running: Tensor) -> None:
    """Set the tokens that run the next loop, by their mask on the CPU, (B, T)."""
    run.running, run.picked, run.selected = running, TokenSubset.from_mask(running, run.state.device), {}


def loop_running(model: Any, run: Looping) -> Tensor:
    """Run one more loop of the running tokens, and return the normed states of all tokens, (B, T, D)."""
    run.cache.set_loop(run.done + 1, run.picked)
    rows, new = run.embedded.shape[:2]
    cells = rows * new if run.picked is None else run.picked.cell_count
    seen = 2 * run.cache.target.before + new + 1  # twice what a token sees: half of T, and all of M
    run.computed.append((cells, cells, cells * seen // 2))
    if run.picked is None:
        normed: Tensor = model.loop_once(run)
        return normed
    normed = run.state.new_zeros(run.embedded.shape) if run.normed is None else run.normed
    if run.picked.cell_count:
        part = select_tokens(run, run.picked)
        computed = model.loop_once(part)
        run.state, normed = run.picked.put(run.state, part.state), run.picked.put(normed, computed)
    run.normed, run.done = normed, run.done + 1
    return normed


def read_running(model: Any, run: Looping) -> Tensor:
    """Return the hidden states for the head, (B, T, D): new ones for running tokens, the last ones for the others."""
    if run.picked is None:
        read: Tensor = model.read_once(run)
    else:
        read = run.state.new_zeros(run.embedded.shape) if run.readings is None else run.readings
        if run.picked.cell_count:
            read = run.picked.put(read, model.read_once(select_tokens(run, run.picked)))
    run.readings = read
    return read


def remove_exited(model: Any, run: Looping, exits: Tensor) -> None:
    """Remove the tokens that exit after the last loop, (B, T), on the CPU, and store their final cache entries."""
    assert run.running is not None, "no token leaves without compaction"
    exits = exits & run.running
    if not bool(exits.any()):
        return
    set_running(run, run.running & ~exits)
    rows, tokens = exits.nonzero().T.to(run.state.device, non_blocking=True)
    cache: Any = run.cache
    frozen: list[Any] = [None] * len(cache.core)
    if cache.policy.name == "frozen" and run.done < cache.loops:
        frozen = compute_frozen_keys(model, run, rows, tokens)
        queries, keys, pairs = run.computed[-1]
        run.computed[-1] = queries, keys + len(rows), pairs
    for layer, both in zip(cache.core, frozen, strict=True):
        layer.finalize_exited(rows, tokens, run.done, both)
    for layer in cache.coda:
        layer.finalize_exited(rows, tokens, run.done)


def close(model: Any, run: Looping) -> None:
    """End the loops: the tokens that are still running exit, and the cache stores all tokens."""
    remove_exited(model, run, torch.ones(run.embedded.shape[:2], dtype=torch.bool))
    run.cache.close()


def compute_frozen_keys(model: Any, run: Looping, rows: Tensor, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Compute the keys and values, (K, h, d) each, of every layer of a loop, for the loops that exited tokens skip."""
    states = model.loop_input(run.state[rows, tokens], run.embedded[rows, tokens]).unsqueeze(1)
    rotation = tuple(table[rows, tokens].unsqueeze(1) for table in run.rotation)
    positions = run.positions[rows, tokens].unsqueeze(1)
    both = compute_keys_and_values(model.layers_of_loop(), states, rotation, positions)
    return [(keys.squeeze(2), values.squeeze(2)) for keys, values in both]


def select_tokens(run: Looping, picked: TokenSubset) -> Looping:
    """Return the loop state restricted to the selected tokens, (R, r)."""
    rows, new = run.embedded.shape[:2]
    inputs = {"embedded": run.embedded, "positions": run.positions, "rotation": run.rotation}
    inputs = picked.select_inputs(inputs, (rows, new), run.selected)
    select_mask = partial(picked.select_mask, before=run.cache.target.before, new=new, selected=run.selected)
    masks: Any = run.masks
    masks = {kind: select_mask(mask) for kind, mask in masks.items()} if isinstance(masks, dict) else select_mask(masks)
    normed = None if run.normed is None else picked.take(run.normed)
    return replace(run, **inputs, masks=masks, state=picked.take(run.state), normed=normed)
