"""Key-value caches of looped models that store fewer entries per token than the number of loops.

A token that exits after loop e has keys k_1..k_e and values v_1..v_e in each layer of the core. The cache policy
defines which key other tokens read at loop n. This applies to tokens of later forward passes, and to tokens of the same
forward pass after the exit:

    all      k_n: all tokens run all loops (transformers' own caches; no cache of this module)
    frozen   k_n where n <= e; after its exit what the layer makes of what a loop would begin with at the state s_e
    last     k_e
    first    k_1
    mean     (k_1 + ... + k_e) / e
    ring:K   k_m of the newest loop m <= e with m = n (mod K); k_e where there is none, which is where e < K

The same holds for the values. Tokens of one forward pass that still run attend to each other loop by loop. A prompt is
therefore computed as without a cache, except for tokens that have exited. Layers of the prelude have one entry per
token. A layer of the coda stores the entry of the loop at which the token exited. With `frozen`, it stores an entry for
every loop after which it ran, and the entry of the exit for all other loops.

A layer stores a tensor with S entries per token, (B, S, h, M, d). S is N for `frozen`, K for a ring, and 1 for the
other policies. An entry that is read at several loops is stored several times. Reading is therefore a view instead of a
lookup, whatever number of loops the tokens ran. `Target` records where the keys of the current forward pass are
written: the rows and tokens, and one loop for all of them. Rows at different loops would need one loop per row in
`Target`, and one view per row in `LoopLayer.update`. The stored values never depend on the loops of other rows.
A layer that runs several times in a loop (the low-level stack of HRM-Text) has a cache layer for each of these times.

Shape legend: B rows, T new tokens, M tokens that were there before, K tokens that exit, h heads of keys and values, d
their width, N loops.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from adadepth.errors import ConfigError
from adadepth.models.depth.cache import Target, TokenCache, TokenLayer
from adadepth.models.depth.subset import TokenSubset
from adadepth.models.looped.cache_policies import parse_policy


def bytes_per_token(config: Any, policy: str | None = None, loops: int | None = None, item: int = 4) -> int:
    """Return the bytes of cached keys and values per token: 2 h d numbers, times P + S C + S' Q entries, times `item`.

    Args:
        config: Configuration of the model, a `LoopedConfig`.
        policy: Name of the cache policy, or None for that of the configuration.
        loops: Number N of loops, or None for that of the configuration.
        item: Number of bytes of one number.
    """
    parsed, loops = parse_policy(policy or config.cache_policy), config.loops(loops)
    entries = (
        config.prelude + config.layers_per_loop * parsed.core_entries(loops) + config.coda * parsed.coda_entries(loops)
    )
    return int(2 * config.key_value_heads * config.width_of_head * item * entries)


class LoopLayer(TokenLayer):
    """Cached keys and values of one layer of a looped model, with S entries per token as the cache policy defines.

    Args:
        entries: Number S of entries per token.
        target: Position of the current forward pass.
        policy: Name of the cache policy: `frozen`, `last`, `mean`, `first` or `ring`.
    """

    def __init__(self, entries: int, target: Target, policy: str) -> None:
        super().__init__(target, entries)
        self._policy, self._written = policy, set[int]()
        # Keys and values of the running call, (B, h, T, d) each: the sum over loops for `mean`, the first loop's.
        self._accumulated: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values, (R, h, r, d), to the cache, and return those for attention, (R, h, M + T, d)."""
        loop = max(self._target.loop, 0)
        entry = min(loop, self.entries - 1) if self._policy == "frozen" else loop % self.entries
        read = self._write_entry(entry, key_states, value_states)
        self._accumulate((key_states.detach(), value_states.detach()), loop)
        self._written.add(entry)
        return read

    def finalize_exited(
        self, rows: Tensor, tokens: Tensor, loop: int, frozen: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Store the final cache entries of K tokens that exit after loop n (counted from 1).

        Args:
            rows: Row index of each token, int64 (K,).
            tokens: Index of each token in the current forward pass, int64 (K,).
            loop: Loop n.
            frozen: Keys and values for the entries of later loops, (K, h, d) each, or None to use those of loop n.
        """
        columns = self._target.before + tokens
        for number, stored in enumerate((self.keys, self.values)):
            if self._policy in ("mean", "first"):
                accumulated = self._accumulated[number][rows, :, tokens]
                result = accumulated / loop if self._policy == "mean" else accumulated
                stored[rows, 0, :, columns] = result.to(stored.dtype)
            elif empty := self._find_empty_entries(loop):
                newest = (loop - 1) % self.entries
                filling = stored[rows, newest, :, columns] if frozen is None else frozen[number]
                for entry in empty:
                    stored[rows, entry, :, columns] = filling

    def _find_empty_entries(self, loop: int) -> list[int]:
        """Return the cache entries that are still empty for a token that exits after loop n, counted from 1."""
        if self.entries == 1:
            return []
        if self._policy == "ring":
            return list(range(loop, self.entries))
        newest = (loop - 1) % self.entries
        return [entry for entry in range(self.entries) if entry > newest or entry not in self._written]

    def close(self) -> None:
        """End the forward pass."""
        self._accumulated, self._written = [], set()

    def _accumulate(self, both: tuple[Tensor, Tensor], loop: int) -> None:
        """Add the keys and values of a loop to the sum over loops, or store the first loop's, in float32 or wider."""
        if self._policy not in ("mean", "first") or (self._policy == "first" and loop > 0):
            return
        target = self._target
        if loop == 0:
            shapes = [(target.rows, new.shape[1], target.new, new.shape[3]) for new in both]
            self._accumulated = [
                new.new_zeros(shape, dtype=torch.promote_types(new.dtype, torch.float32))
                for new, shape in zip(both, shapes, strict=True)
            ]
        for total, new in zip(self._accumulated, both, strict=True):
            if (picked := target.picked) is None:
                total += new
            else:
                total[picked.token_rows, :, picked.token_columns] += picked.flatten(new.transpose(1, 2))


class LoopedCache(TokenCache):
    """Key-value cache of a looped model that stores only some loops of each token, as a cache policy defines.

    Args:
        config: Configuration of the model, a `LoopedConfig`.
        policy: Name of the cache policy, or None for that of the configuration.
        loops: Maximum number N of loops of a forward pass, or None for that of the configuration.

    Raises:
        ConfigError: If there is no such policy, or the policy is `all`.
    """

    estimate = "; call cache.bytes_per_token(config) for an estimate"

    def __init__(self, config: Any, policy: str | None = None, loops: int | None = None) -> None:
        parsed, self.loops = parse_policy(policy or config.cache_policy), config.loops(loops)
        if parsed.name == "all":
            raise ConfigError(
                "cache_policy=all: use DynamicCache or StaticCache; LoopedCache implements the other policies"
            )
        target, name = Target(), parsed.name
        entries, coda_entries = parsed.core_entries(self.loops), parsed.coda_entries(self.loops)
        coda_policy = "frozen" if name == "frozen" else "last"
        prelude = [LoopLayer(1, target, "last") for _ in range(config.prelude)]
        self.core = [LoopLayer(entries, target, name) for _ in range(config.layers_per_loop)]
        self.coda = [LoopLayer(coda_entries, target, coda_policy) for _ in range(config.coda)]
        super().__init__([*prelude, *self.core, *self.coda], target, parsed)

    def check_loops(self, loops: int) -> None:
        """Raise an error if `frozen` stores fewer loops than a forward pass of N loops may run."""
        if self.policy.name == "frozen" and loops > self.loops:
            raise ConfigError(
                f"num_loops={loops}: this cache was created for {self.loops} loops; create it with loops={loops}"
            )

    def set_loop(self, loop: int, picked: TokenSubset | None) -> None:
        """Set the loop n, counted from 1, and the tokens whose keys and values are written next."""
        self.target.loop, self.target.picked = loop - 1, picked

    def close(self) -> None:
        """End the forward pass."""
        super().close()
        layers: list[Any] = self.layers
        for layer in layers:
            layer.close()


def make_cache(config: Any, policy: str, loops: int) -> Cache:
    """Create an empty key-value cache with the given policy."""
    return DynamicCache() if parse_policy(policy).name == "all" else LoopedCache(config, policy, loops)
