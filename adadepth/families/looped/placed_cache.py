"""Keys and values of many texts at once, each of which is at a loop of its own, and attention that reads them in place.

Shape legend: M tokens, h heads of keys and values, d their width, N loops.
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

from adadepth.families.looped.heads import LoopedForCausalLM
from adadepth.families.looped.modeling import LoopedModel

_FEW = 2**18  # numbers of keys up to which a copy takes less time than a call for every place


class PlacedTokens(NamedTuple):
    """Tokens of one place at one loop, from 0 (None: before all loops), at these positions in order."""

    place: int
    loop: int | None
    positions: list[int]


class PlacedCache:
    """Keys and values of every place, loop and position, in one tensor a layer: the tokens of a loop lie together.

    Row ((place N + loop) room + position) of a layer's (rows, h d) is a token's; layers of the prelude have one loop.
    Tokens are written where `aim` says. A single token of every place attends through views, which copy nothing, or,
    where there is little to copy, over a copy of all places at once, which is fewer calls.
    """

    def __init__(self, model: LoopedModel, places: int, loops: int, room: int) -> None:
        config = model.config
        self._heads, self._width = config.key_value_heads, config.width_of_head
        self._loops, self._room = loops, room
        coda = config.prelude + loops * config.core
        self._looped = {*range(config.prelude, config.prelude + config.core), *range(coda, coda + config.coda)}
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        like = model.embed_tokens.weight
        for number in {*range(config.prelude), *self._looped}:
            rows = places * room * (loops if number in self._looped else 1)
            # Zeros, because what a mask leaves out is multiplied by 0.
            keys, values = (like.new_zeros(rows, self._heads * self._width) for _ in range(2))
            self._kept[number] = keys, values

    def _row(self, place: int, loop: int | None) -> int:
        return (place if loop is None else place * self._loops + loop) * self._room

    def aim(self, groups: Sequence[PlacedTokens]) -> None:
        """Say whose the next tokens are, which come in the order of the groups."""
        self._groups = groups
        self._begins = [self._row(group.place, group.loop) for group in groups]
        self._lengths = [group.positions[-1] + 1 for group in groups]
        self._single = all(len(group.positions) == 1 for group in groups)
        where = [row + at for row, group in zip(self._begins, groups, strict=True) for at in group.positions]
        self._where = torch.tensor(where)
        self._together: tuple[Tensor, Tensor] | None = None

    def update(self, keys: Tensor, values: Tensor, number: int, *args: Any, **kwargs: Any) -> Any:
        """Write keys and values of M tokens, (M, h, 1, d), in the layer with this place in a usual cache."""
        for kept, new in zip(self._kept[number], (keys, values), strict=True):
            kept.index_copy_(0, self._where, new.reshape(-1, self._heads * self._width))
        return _Placed(self, number), None

    def later(self, groups: Sequence[PlacedTokens]) -> tuple[Tensor, Tensor]:
        """Of tokens that have had the loop of their group: which of them (k,), and the rows (k,) of later loops."""
        found: list[tuple[int, int]] = []
        tokens = itertools.count()
        for place, loop, positions in groups:
            assert loop is not None
            later = [self._row(place, other) for other in range(loop + 1, self._loops)]
            found += [(token, row + at) for at, token in zip(positions, tokens, strict=False) for row in later]
        numbers, rows = zip(*found, strict=True) if found else ((), ())
        return torch.tensor(numbers, dtype=torch.int64), torch.tensor(rows, dtype=torch.int64)

    def write_later(self, number: int, where: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values (k, h d) in the rows (k,) that `later` gives."""
        for kept, new in zip(self._kept[number], (keys, values), strict=True):
            kept.index_copy_(0, where, new)

    def repeat_later(self, number: int, groups: Sequence[PlacedTokens]) -> None:
        """Copy what tokens have at the loop of their group to all later loops."""
        tokens, where = self.later(groups)
        source = [self._row(group.place, group.loop) + at for group in groups for at in group.positions]
        rows = torch.tensor(source)[tokens]
        self.write_later(number, where, *(kept[rows] for kept in self._kept[number]))

    def attend(self, number: int, query: Tensor, scaling: float | None, window: int | None) -> Tensor:
        """Attention of queries (M, H, 1, d) over what their places have, (M, 1, H, d)."""
        heads, width = self._heads, self._width
        grouped = query.shape[1] // heads
        if not self._single:
            return self._attend_by_group(number, query, scaling, window)
        if grouped > 1:  # heads that share keys are like several tokens that see the same
            query = query.view(len(query), heads, grouped, width)
        if len(query) > 1 and len(query) * max(self._lengths) * heads * width <= _FEW:
            attended = self._attend_together(number, query, scaling, window)
        else:
            attended = self._attend_one_by_one(number, query, scaling, window)
        return attended.reshape(len(query), 1, heads * grouped, width)

    def _attend_one_by_one(self, number: int, query: Tensor, scaling: float | None, window: int | None) -> Tensor:
        attended = []
        for row, begin, length in zip(query.split(1), self._begins, self._lengths, strict=True):
            skipped = 0 if window is None else max(length - window, 0)
            key, value = self._views(number, begin + skipped, length - skipped)
            attended.append(scaled_dot_product_attention(row, key, value, scale=scaling))
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _attend_together(self, number: int, query: Tensor, scaling: float | None, window: int | None) -> Tensor:
        if self._together is None:
            lengths = torch.tensor(self._lengths).unsqueeze(1)
            columns = torch.arange(max(self._lengths))
            seen = columns < lengths
            if window is not None:
                seen &= columns >= lengths - window
            self._together = torch.tensor(self._begins).unsqueeze(1) + columns, seen[:, None, None]
        where, seen = self._together
        key, value = (
            embedding(where, kept).unflatten(-1, (self._heads, self._width)).transpose(1, 2)
            for kept in self._kept[number]
        )
        return scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scaling)

    def _attend_by_group(self, number: int, query: Tensor, scaling: float | None, window: int | None) -> Tensor:
        attended, shared = [], query.shape[1] > self._heads
        for tokens, group, begin, length in zip(
            query.squeeze(2).split([len(group.positions) for group in self._groups]),
            self._groups,
            self._begins,
            self._lengths,
            strict=True,
        ):
            key, value = self._views(number, begin, length)
            before = torch.tensor(group.positions).unsqueeze(1) - torch.arange(length)
            seen = before >= 0 if window is None else (before >= 0) & (before < window)
            row = tokens.transpose(0, 1).unsqueeze(0)
            found = scaled_dot_product_attention(row, key, value, attn_mask=seen, scale=scaling, enable_gqa=shared)
            attended.append(found[0].transpose(0, 1))
        return torch.cat(attended).unsqueeze(1)

    def _views(self, number: int, begin: int, length: int) -> list[Tensor]:
        """Keys and values of a place at a loop, (1, h, length, d) each."""
        line = self._heads * self._width
        sizes, strides = (1, self._heads, length, self._width), (line, self._width, line, 1)
        return [kept.as_strided(sizes, strides, begin * line) for kept in self._kept[number]]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Layers that ask are told nothing: positions are given."""
        return 0


@dataclass
class _Placed:
    """Keys that stay where they are: what attention gets in place of a tensor."""

    cache: PlacedCache
    number: int


_ATTENTION = "adadepth_places"


def _attend(
    module: Any,
    query: Tensor,
    key: _Placed,
    value: None,
    attention_mask: None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention by place, as an attention function of transformers."""
    return key.cache.attend(key.number, query, scaling, sliding_window), None


AttentionInterface.register(_ATTENTION, _attend)


@contextmanager
def attention_by_place(model: LoopedForCausalLM) -> Iterator[None]:
    """Let all layers attend by place."""
    of: list[Any] = [model.config, model.model.config]
    of += [] if model.config.base_config is None else [model.config.base_config]
    before = [config._attn_implementation for config in of]
    try:
        for config in of:
            config._attn_implementation = _ATTENTION
        yield
    finally:
        for config, implementation in zip(of, before, strict=True):
            config._attn_implementation = implementation
