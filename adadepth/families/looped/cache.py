"""Caches of looped models that do not keep every loop of every token: what later tokens read of earlier ones.

A token that exits after loop e has keys k_1..k_e and values v_1..v_e in each layer of the core. What is read of it at
loop n, by tokens of later calls, and by those of its own call once it has exited, is the policy's:

    all      k_n. Nobody stops: all tokens run all loops (transformers' own caches; no cache of this module)
    frozen   k_n where n <= e; behind its exit what the layer makes of what a loop would begin with at the state s_e
    last     k_e
    first    k_1
    mean     (k_1 + ... + k_e) / e
    ring:K   k_m of the newest loop m <= e with m = n (mod K); k_e where there is none, which is where e < K

and the same of the values. Tokens of one call that still run see each other loop by loop, so that a prompt is computed
as without a cache but for its tokens that have exited. Layers of the prelude have one place. A coda has what it made
after the loop that the token was read at; with `frozen` a place for every loop after which it ran, and that of the exit
at all others.

A layer has a tensor of B rows and S places, (B, S, h, M, d): N places of `frozen`, K of a ring, one of the others. A
place that a policy reads twice is written twice, so that reading is a view and no look-up, whatever loops the rows'
tokens ran. Where keys of the running call stand is said by `aim`: rows and tokens of each, and one loop for all. Rows
at different loops would need a loop for each row there, and a view for each in `LoopLayer.update`; nothing that is kept
depends on the loop at which other rows are.

Shape legend: B rows, T new tokens, M tokens that were there before, K tokens that exit, h heads of keys and values, d
their width, N loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

from adadepth.errors import ConfigError
from adadepth.families.looped.policies import parse_policy


def bytes_per_token(config: Any, policy: str | None = None, loops: int | None = None, item: int = 4) -> int:
    """Keys and values of a token: 2 h d bytes a number, times P + S C + S' Q places.

    Args:
        config: `LoopedConfig`.
        policy: None: the configuration's.
        loops: N; None: the configuration's.
        item: Bytes of a number.
    """
    kept, loops = parse_policy(policy or config.cache_policy), config.loops(loops)
    places = config.prelude + config.core * kept.places(loops) + config.coda * kept.coda_places(loops)
    return int(2 * config.key_value_heads * config.width_of_head * item * places)


@dataclass
class Aim:
    """Where the keys of the running call stand.

    Attributes:
        before: M.
        new: T.
        rows: B.
        loop: From 0; -1 before all loops.
        picked: Which tokens they are of; None: of all.
    """

    before: int = 0
    new: int = 0
    rows: int = 0
    loop: int = -1
    picked: Picked | None = None


@dataclass
class Picked:
    """Some tokens of a batch, in as few rows as they are in, R, each with as many columns as the fullest needs, r.

    Attributes:
        rows: Ascending, int64 (R,).
        tokens: Ascending in a row, int64 (R, r); where a row has fewer, others of its tokens fill it.
        real: Which of them were picked, boolean (R, r).
    """

    rows: Tensor
    tokens: Tensor
    real: Tensor

    @classmethod
    def of(cls, running: Tensor) -> Picked | None:
        """Those of (B, T) that run; None: all of them."""
        counts = running.sum(dim=1)
        most = int(counts.max())
        if most == running.shape[1] and bool((counts == most).all()):
            return None
        rows = counts.nonzero().squeeze(1)
        tokens = (~running[rows]).long().argsort(dim=1, stable=True)[:, :most]
        return cls(rows, tokens, torch.arange(most, device=rows.device) < counts[rows].unsqueeze(1))

    def take(self, values: Tensor) -> Tensor:
        """(B, T, ...) to (R, r, ...)."""
        return values[self.rows.unsqueeze(1), self.tokens]

    def put(self, values: Tensor, computed: Tensor) -> Tensor:
        """(B, T, ...) with those of (R, r, ...) at their places."""
        rows, tokens = self.places
        return values.index_put((rows, tokens), computed[self.real])

    @property
    def places(self) -> tuple[Tensor, Tensor]:
        """Row and token of each that was picked."""
        return self.rows.unsqueeze(1).expand_as(self.tokens)[self.real], self.tokens[self.real]


_SLACK = 64  # tokens that there is room for when there is no more


class LoopLayer(CacheLayerMixin):
    """Keys and values of a layer, (B, S, h, room, d), of which M tokens count.

    Args:
        places: S.
        aim: Shared by the layers of a cache.
        keeps: What becomes of a token's loops: `frozen`, `last`, `mean`, `first` or `ring`.
    """

    is_sliding = False
    is_croppable = True
    supports_early_init = False
    keys: Any  # a tensor, once there is a token
    values: Any

    def __init__(self, places: int, aim: Aim, keeps: str) -> None:
        super().__init__()
        self._places, self._aim, self._keeps = places, aim, keeps
        self._length, self._written = 0, set[int]()
        self._aside: list[Tensor] = []  # of the running call: sums of a mean, the first loop's, (B, h, T, d) each

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make room for no token yet; rows are those of the call."""
        self.keys, self.values = (
            each.new_zeros(self._aim.rows, self._places, each.shape[1], 0, each.shape[3])
            for each in (key_states, value_states)
        )
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values (R, h, r, d) where the cache aims; returns what is read there, (R, h, M + T, d)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        aim = self._aim
        self._make_room(aim.before + aim.new)
        loop = max(aim.loop, 0)
        place = min(loop, self._places - 1) if self._keeps == "frozen" else loop % self._places
        said = key_states.detach(), value_states.detach()
        for kept, new in zip((self.keys, self.values), said, strict=True):
            _write(kept[:, place], new, aim)
        self._set_aside(said, loop)
        self._written.add(place)
        return self._read(self.keys[:, place]), self._read(self.values[:, place])

    def settle(self, rows: Tensor, tokens: Tensor, loop: int, frozen: tuple[Tensor, Tensor] | None = None) -> None:
        """Bring tokens (K,) that exit after loop n, from 1, into what is kept of them.

        Args:
            rows: Of each.
            tokens: Of the running call.
            loop: n.
            frozen: Keys and values (K, h, d) for the places behind; None: those of loop n.
        """
        at = self._aim.before + tokens
        for number, kept in enumerate((self.keys, self.values)):
            if self._keeps in ("mean", "first"):
                aside = self._aside[number][rows, :, tokens]
                kept[rows, 0, :, at] = (aside / loop if self._keeps == "mean" else aside).to(kept.dtype)
            elif self._places > 1:
                newest = (loop - 1) % self._places
                others = self._others(newest, loop)
                if others:
                    said = kept[rows, newest, :, at] if frozen is None else frozen[number]
                    for place in others:
                        kept[rows, place, :, at] = said

    def _others(self, newest: int, loop: int) -> list[int]:
        """Places that hold nothing of a token that exits after loop n, from 1."""
        if self._keeps == "ring":
            return list(range(loop, self._places))
        return [place for place in range(self._places) if place > newest or place not in self._written]

    def close(self, length: int) -> None:
        """The call is over: M is this."""
        self._length, self._aside, self._written = length, [], set()

    def get_seq_length(self) -> int:
        """M."""
        return self._length

    def get_max_length(self) -> int:
        """It grows."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """M + T, and that the first is the first."""
        return self._length + query_length, 0

    def reset(self) -> None:
        """Forget all tokens."""
        self.keys = self.values = None
        self.is_initialized = False
        self.close(0)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget so many last tokens, a number of 0 or less: what is kept of a token is its own under every policy.

        Raises:
            ValueError: If the number is positive.
        """
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): the number of tokens to remove is given as a negative one")
        self._length = max(self._length + tokens_to_remove, 0)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row so many times."""
        if self.is_initialized:
            self.keys, self.values = (each.repeat_interleave(repeats, dim=0) for each in (self.keys, self.values))

    def batch_select_indices(self, indices: Tensor) -> None:
        """These rows only."""
        if self.is_initialized:
            self.keys, self.values = self.keys[indices], self.values[indices]

    def _make_room(self, needed: int) -> None:
        have = self.keys.shape[3]
        if needed > have:
            more = max(needed + _SLACK, have + have // 4) - have
            self.keys, self.values = (
                torch.nn.functional.pad(each, (0, 0, 0, more)) for each in (self.keys, self.values)
            )

    def _set_aside(self, said: tuple[Tensor, Tensor], loop: int) -> None:
        """The first loop of each token, or the sum over its loops, in no less than float32."""
        if self._keeps not in ("mean", "first") or (self._keeps == "first" and loop > 0):
            return
        aim = self._aim
        if loop == 0:
            self._aside = [
                each.new_zeros(
                    aim.rows,
                    each.shape[1],
                    aim.new,
                    each.shape[3],
                    dtype=torch.promote_types(each.dtype, torch.float32),
                )
                for each in said
            ]
        for aside, new in zip(self._aside, said, strict=True):
            if aim.picked is None:
                aside += new
            else:
                rows, tokens = aim.picked.places
                aside[rows, :, tokens] += new.transpose(1, 2)[aim.picked.real]

    def _read(self, kept: Tensor) -> Tensor:
        """(B, h, room, d) to (R, h, M + T, d), a view where all rows are read."""
        aim = self._aim
        filled = kept[:, :, : aim.before + aim.new]
        if aim.picked is None or len(aim.picked.rows) == aim.rows:
            return filled
        first, last = int(aim.picked.rows[0]), int(aim.picked.rows[-1])
        if last - first + 1 == len(aim.picked.rows):
            return filled[first : last + 1]
        return filled.index_select(0, aim.picked.rows)


def _write(kept: Tensor, new: Tensor, aim: Aim) -> None:
    """(R, h, r, d) into (B, h, room, d)."""
    if aim.picked is None:
        kept[:, :, aim.before : aim.before + aim.new] = new
    else:
        rows, tokens = aim.picked.places
        kept[rows, :, aim.before + tokens] = new.transpose(1, 2)[aim.picked.real]


class LoopedCache(Cache):
    """A cache of a policy other than `all`, with one layer for each of P + C + Q layers that have weights.

    Args:
        config: `LoopedConfig`.
        policy: None: the configuration's.
        loops: N, the most loops of a call; None: the configuration's.

    Raises:
        ConfigError: If there is no such policy, or it is `all`.
    """

    def __init__(self, config: Any, policy: str | None = None, loops: int | None = None) -> None:
        self.policy, self.loops = parse_policy(policy or config.cache_policy), config.loops(loops)
        if self.policy.name == "all":
            raise ConfigError("cache_policy=all: is what DynamicCache and StaticCache keep; LoopedCache has the others")
        self.aim, self._sizes = Aim(), (config.prelude, config.core, config.coda)
        places, coda = self.policy.places(self.loops), self.policy.coda_places(self.loops)
        core_keeps, coda_keeps = self.policy.name, "frozen" if self.policy.name == "frozen" else "last"
        self._ours = [
            *(LoopLayer(1, self.aim, "last") for _ in range(config.prelude)),
            *(LoopLayer(places, self.aim, core_keeps) for _ in range(config.core)),
            *(LoopLayer(coda, self.aim, coda_keeps) for _ in range(config.coda)),
        ]
        super().__init__([*self._ours])

    @property
    def core(self) -> list[LoopLayer]:
        """Layers of the core."""
        return self._ours[self._sizes[0] : self._sizes[0] + self._sizes[1]]

    @property
    def coda(self) -> list[LoopLayer]:
        """Layers of the coda."""
        return self._ours[self._sizes[0] + self._sizes[1] :]

    def open(self, rows: int, new: int, loops: int) -> None:
        """A call of so many rows, tokens and loops begins; the prelude is next.

        Raises:
            ConfigError: If it may run more loops than `frozen` has places for, or has other rows.
        """
        if self.policy.name == "frozen" and loops > self.loops:
            raise ConfigError(f"num_loops={loops}: this cache has places for {self.loops}; it is made with loops=")
        first = self._ours[0]
        if first.is_initialized and len(first.keys) != rows:
            raise ConfigError(f"past_key_values: has {len(first.keys)} rows, the call {rows}")
        aim = self.aim
        aim.before, aim.new, aim.rows, aim.loop, aim.picked = self.get_seq_length(), new, rows, -1, None

    def at(self, loop: int, picked: Picked | None) -> None:
        """What is written next is of these tokens at loop n, from 1."""
        self.aim.loop, self.aim.picked = loop - 1, picked

    def close(self) -> None:
        """The call is over: its tokens are earlier ones."""
        length = self.aim.before + self.aim.new
        for layer in self._ours:
            layer.close(length)

    def bytes_per_token(self) -> int:
        """Of keys and values, as they are kept: room that is not filled is not counted.

        Raises:
            ConfigError: If there are none yet.
        """
        if not all(layer.is_initialized for layer in self._ours):
            raise ConfigError("bytes_per_token: nothing is cached yet; `cache.bytes_per_token(config)` asks a policy")
        kept = [each for layer in self._ours for each in (layer.keys, layer.values)]
        return sum(each.shape[1] * each.shape[2] * each.shape[4] * each.element_size() for each in kept)


def made_cache(config: Any, policy: str, loops: int) -> Cache:
    """An empty cache of a policy."""
    return DynamicCache() if parse_policy(policy).name == "all" else LoopedCache(config, policy, loops)
