"""Key-value cache for continuous batching, in which each slot holds one text, and texts may be at different loops.

Shape legend: M tokens, H query heads, h key-value heads, d head width, N loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, scaled_dot_product_attention
from transformers.modeling_utils import AttentionInterface

from adadepth.models.looped.heads import LoopedForCausalLM
from adadepth.models.looped.modeling import LoopedModel

_MAX_COPIED = 2**18  # numbers of keys up to which a copy takes less time than a call for every slot


class SlotTokens(NamedTuple):
    """Token positions of one text (slot) that a forward pass computes, and the loop that they run.

    Loops are counted from 0. None stands for the prelude, before all loops.
    """

    slot: int
    loop: int | None
    positions: list[int]


class SlotCache:
    """Key-value cache of a looped model for many texts (slots), with entries for every loop and position.

    The tensor of a layer is (rows, h d), and a token has row ((slot N + loop) capacity + position). The tokens of one
    loop are therefore contiguous. Layers of the prelude have one loop. `set_groups` sets the rows of the tokens that
    are written next. If every slot has a single token, attention reads views of the tensor without a copy. If the copy
    would be small, attention copies all slots at once instead, which needs fewer calls.
    """

    def __init__(self, model: LoopedModel, slots: int, loops: int, capacity: int) -> None:
        config = model.config
        self._heads, self._width = config.key_value_heads, config.width_of_head
        self._loops, self._capacity = loops, capacity
        first, per_loop = config.prelude, config.layers_per_loop
        coda = first + loops * per_loop
        looped = {*range(first, first + per_loop), *range(coda, coda + config.coda)}
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        like = model.embed_tokens.weight
        for layer in {*range(config.prelude), *looped}:
            rows = slots * capacity * (loops if layer in looped else 1)
            # Zeros, because what a mask leaves out is multiplied by 0.
            keys, values = (like.new_zeros(rows, self._heads * self._width) for _ in range(2))
            self._layers[layer] = keys, values

    def _first_row(self, slot: int, loop: int | None) -> int:
        return (slot if loop is None else slot * self._loops + loop) * self._capacity

    def _find_rows(self, groups: Sequence[SlotTokens]) -> list[int]:
        return [self._first_row(group.slot, group.loop) + at for group in groups for at in group.positions]

    def set_groups(self, groups: Sequence[SlotTokens]) -> None:
        """Set which tokens the next forward pass computes; later calls expect tokens in this order."""
        self._groups = groups
        self._starts = [self._first_row(group.slot, group.loop) for group in groups]
        self._lengths = [group.positions[-1] + 1 for group in groups]
        self._single = all(len(group.positions) == 1 for group in groups)
        self._rows = torch.tensor(self._find_rows(groups))
        self._batched: tuple[Tensor, Tensor] | None = None

    def update(self, keys: Tensor, values: Tensor, layer: int, *args: Any, **kwargs: Any) -> Any:
        """Write the keys and values of M tokens, (M, h, 1, d), to a layer of the cache.

        The layer is numbered as in a cache of transformers.
        """
        self.write(layer, self._rows, *(new.reshape(-1, self._heads * self._width) for new in (keys, values)))
        return _LayerInCache(self, layer), None

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values, (k, h d), to the given rows, (k,), of a layer."""
        for stored, new in zip(self._layers[layer], (keys, values), strict=True):
            stored.index_copy_(0, rows, new)

    def find_later_rows(self, groups: Sequence[SlotTokens]) -> tuple[Tensor, Tensor]:
        """Return the cache rows of all later loops of the given tokens, as token indices and rows, both (k,)."""
        pairs: list[tuple[int, int]] = []
        tokens = itertools.count()
        for slot, loop, positions in groups:
            assert loop is not None
            starts = [self._first_row(slot, later) for later in range(loop + 1, self._loops)]
            pairs += [(token, start + at) for at, token in zip(positions, tokens, strict=False) for start in starts]
        numbers, rows = zip(*pairs, strict=True) if pairs else ((), ())
        return torch.tensor(numbers, dtype=torch.int64), torch.tensor(rows, dtype=torch.int64)

    def copy_to_later_loops(self, layer: int, groups: Sequence[SlotTokens]) -> None:
        """Copy the keys and values of tokens from their current loop to all later loops."""
        tokens, rows = self.find_later_rows(groups)
        source = torch.tensor(self._find_rows(groups))[tokens]
        self.write(layer, rows, *(stored[source] for stored in self._layers[layer]))

    def attend(self, layer: int, query: Tensor, scaling: float | None, window: int | None) -> Tensor:
        """Compute the attention of queries (M, H, 1, d) to the cached tokens of their own text; return (M, 1, H, d)."""
        heads, width = self._heads, self._width
        shared = query.shape[1] // heads
        if not self._single:
            return self._attend_by_group(layer, query, scaling, window)
        if shared > 1:  # heads that share keys are like several tokens that see the same
            query = query.view(len(query), heads, shared, width)
        if len(query) > 1 and len(query) * max(self._lengths) * heads * width <= _MAX_COPIED:
            attended = self._attend_batched(layer, query, scaling, window)
        else:
            attended = self._attend_by_slot(layer, query, scaling, window)
        return attended.reshape(len(query), 1, heads * shared, width)

    def _attend_by_slot(self, layer: int, query: Tensor, scaling: float | None, window: int | None) -> Tensor:
        attended = []
        for row, start, length in zip(query.split(1), self._starts, self._lengths, strict=True):
            skipped = 0 if window is None else max(length - window, 0)
            key, value = self._view(layer, start + skipped, length - skipped)
            attended.append(scaled_dot_product_attention(row, key, value, scale=scaling))
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _attend_batched(self, layer: int, query: Tensor, scaling: float | None, window: int | None) -> Tensor:
        if self._batched is None:
            lengths = torch.tensor(self._lengths).unsqueeze(1)
            columns = torch.arange(max(self._lengths))
            visible = columns < lengths
            if window is not None:
                visible &= columns >= lengths - window
            self._batched = torch.tensor(self._starts).unsqueeze(1) + columns, visible[:, None, None]
        rows, visible = self._batched
        key, value = (
            embedding(rows, stored).unflatten(-1, (self._heads, self._width)).transpose(1, 2)
            for stored in self._layers[layer]
        )
        return scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scaling)

    def _attend_by_group(self, layer: int, query: Tensor, scaling: float | None, window: int | None) -> Tensor:
        attended, shared = [], query.shape[1] > self._heads
        queries = query.squeeze(2).split([len(group.positions) for group in self._groups])
        for tokens, group, start, length in zip(queries, self._groups, self._starts, self._lengths, strict=True):
            key, value = self._view(layer, start, length)
            distance = torch.tensor(group.positions).unsqueeze(1) - torch.arange(length)
            visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            row = tokens.transpose(0, 1).unsqueeze(0)
            mixed = scaled_dot_product_attention(row, key, value, attn_mask=visible, scale=scaling, enable_gqa=shared)
            attended.append(mixed[0].transpose(0, 1))
        return torch.cat(attended).unsqueeze(1)

    def _view(self, layer: int, start: int, length: int) -> list[Tensor]:
        """Return views of the keys and values of one text at one loop, (1, h, length, d) each."""
        line = self._heads * self._width
        sizes, strides = (1, self._heads, length, self._width), (line, self._width, line, 1)
        return [stored.as_strided(sizes, strides, start * line) for stored in self._layers[layer]]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0, because the layers receive positions explicitly and do not need the length."""
        return 0


@dataclass
class _LayerInCache:
    """Reference to one layer of a `SlotCache`, passed to attention functions in place of keys."""

    cache: SlotCache
    layer: int


_ATTENTION = "adadepth_slots"


def _attend(
    module: Any,
    query: Tensor,
    key: _LayerInCache,
    value: None,
    attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention over a `SlotCache`, with the signature of transformers' attention functions."""
    return key.cache.attend(key.layer, query, scaling, sliding_window), None


AttentionInterface.register(_ATTENTION, _attend)


@contextmanager
def use_slot_attention(model: LoopedForCausalLM) -> Iterator[None]:
    """Make all layers of a model read keys and values from a `SlotCache` within the `with` block."""
    configs: list[Any] = [model.config, model.model.config]
    configs += [] if model.config.base_config is None else [model.config.base_config]
    implementations = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = _ATTENTION
        yield
    finally:
        for config, implementation in zip(configs, implementations, strict=True):
            config._attn_implementation = implementation
