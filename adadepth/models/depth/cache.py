"""Key-value cache with policies: what later tokens read of a token that skipped loops, layers or parts of a network.

A token that exits after loop or layer e has keys k_1..k_e and values v_1..v_e. The policy says which key other tokens
read at loop or layer n, both tokens of later forward passes and tokens of the same pass after the exit. The same holds
for the values.

    policy                       tokens read at n                                             cache
    all                          k_n: all tokens run everything                               one of transformers
    frozen                       k_n where n <= e; else what n makes of the state at the exit `LoopedCache`, `ExitCache`
    last, first, mean, ring:K    one or K of k_1..k_e                                         `LoopedCache`
    deferred                     k_n: the token runs n once a later token needs it            `ExitCache`
    selected                     k_n of the tokens that part n processed                      `RoutedCache`

A layer stores a tensor with S entries per token. `Target` says where the keys of the current forward pass are written:
the rows and tokens, and one entry for all of them.

Shape legend: B rows, T new tokens, M tokens that were there before, R rows with selected tokens, r columns of the
fullest of them, K selected tokens, h heads of keys and values, d their width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from adadepth.errors import ConfigError
from adadepth.models.depth.subset import TokenSubset
from adadepth.models.shared.generation import CACHE_ARGUMENT


@dataclass
class Target:
    """Position in a key-value cache at which the current forward pass writes, shared by all layers of the cache.

    Attributes:
        before: Number M of earlier tokens in the cache.
        new: Number T of new tokens.
        rows: Number B of rows.
        loop: Current loop, counted from 0, or -1 before the first loop.
        picked: Tokens for which keys and values are written, or None for all tokens.
        appends: Whether layers of chosen tokens append the keys and values that they get, before they are read.
    """

    before: int = 0
    new: int = 0
    rows: int = 0
    loop: int = -1
    picked: TokenSubset | None = None
    appends: bool = True


_SLACK = 64  # tokens by which a full layer grows at least


class TokenLayer(CacheLayerMixin):
    """Cached keys and values of one layer, (B, S, h, capacity, d), of which the first M positions are filled.

    Args:
        target: Position of the current forward pass.
        entries: Number S of entries per token.
    """

    is_sliding = False
    is_croppable = True
    supports_early_init = False
    keys: Any  # a tensor, once there is a token
    values: Any

    def __init__(self, target: Target, entries: int = 1) -> None:
        super().__init__()
        self._target, self.entries = target, entries

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Create empty key and value tensors for the rows of the current forward pass."""
        self.keys, self.values = (
            new.new_zeros(self._target.rows, self.entries, new.shape[1], 0, new.shape[3])
            for new in (key_states, value_states)
        )
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values, (R, h, r, d), to the cache, and return those for attention, (R, h, M + T, d)."""
        return self._write_entry(0, key_states, value_states)

    def _write_entry(self, entry: int, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Write one entry (such as a loop) of the tokens, and return this entry of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._grow(self._target.before + self._target.new)
        for stored, new in zip((self.keys, self.values), (key_states, value_states), strict=True):
            _write(stored[:, entry], new.detach(), self._target)
        return self._read(self.keys[:, entry]), self._read(self.values[:, entry])

    def close(self) -> None:
        """End the forward pass."""

    def get_seq_length(self) -> int:
        """Return the number M of filled tokens."""
        return self._target.before

    def get_max_length(self) -> int:
        """Return -1, because the cache can grow without limit."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys, M + T, and the offset of the first key, 0."""
        return self._target.before + query_length, 0

    def reset(self) -> None:
        """Remove all tokens from the layer."""
        self.keys = self.values = None
        self.is_initialized = False
        self.close()

    def _grow(self, needed: int) -> None:
        capacity = self.keys.shape[3]
        if needed > capacity:
            more = max(needed + _SLACK, capacity + capacity // 4) - capacity
            self.keys, self.values = (
                torch.nn.functional.pad(stored, (0, 0, 0, more)) for stored in (self.keys, self.values)
            )

    def _read(self, stored: Tensor) -> Tensor:
        """Return the keys or values of the running rows, (R, h, M + T, d), from the cache, (B, h, capacity, d).

        The result is a view if the rows are contiguous.
        """
        target = self._target
        filled = stored[:, :, : target.before + target.new]
        if target.picked is None:
            return filled
        span = target.picked.span
        return filled.index_select(0, target.picked.rows) if span is None else filled[span]


def _write(stored: Tensor, new: Tensor, target: Target) -> None:
    """Write the keys or values of the running rows, (R, h, r, d), to the cache, (B, h, capacity, d)."""
    picked = target.picked
    if picked is None or picked.token_columns is None:
        stored[:, :, target.before : target.before + target.new] = new
    else:
        stored[picked.token_rows, :, target.before + picked.token_columns] = picked.flatten(new.transpose(1, 2))


class LayerView:
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


class TokenCache(Cache):
    """Key-value cache with a policy; a family adds what its policies store.

    Args:
        layers: Layers, which share the target.
        target: Position of the current forward pass.
        policy: Policy, or its name.

    Attributes:
        rows_name: Word for rows in messages.
        estimate: End of the message that an empty cache has no bytes.
    """

    rows_name: ClassVar[str] = "rows"
    estimate: ClassVar[str] = ""

    def __init__(self, layers: Sequence[CacheLayerMixin], target: Target, policy: Any) -> None:
        self.target, self.policy = target, policy
        super().__init__([*layers])

    @property
    def stored_layers(self) -> list[Any]:
        """Layers that have keys and values."""
        return [layer for layer in self.layers if layer.is_initialized]

    def open(self, rows: int, new: int) -> None:
        """Begin a forward pass of B rows and T tokens.

        Raises:
            ConfigError: If the cache has another number of rows.
        """
        first: Any = self.layers[0]
        if first.is_initialized and len(first.keys) != rows:
            name = self.rows_name
            raise ConfigError(f"cache: has {len(first.keys)} {name}, but the call has {rows}")
        target = self.target
        target.new, target.rows, target.loop, target.picked = new, rows, -1, None

    def close(self) -> None:
        """End the forward pass; its tokens then belong to the past."""
        self.target.before += self.target.new

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens M."""
        return self.target.before

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of keys that a mask covers, M + T, and the first of them, 0."""
        return self.target.before + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens of every row.

        Args:
            tokens_to_remove: Number of tokens to remove, given as a negative number, or 0.

        Raises:
            ValueError: If the number is positive.
        """
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): the argument must be minus the number of tokens to remove")
        self.target.before = max(self.target.before + tokens_to_remove, 0)

    def reset(self) -> None:
        """Remove all tokens."""
        super().reset()
        self.target.before = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select rows in a new order, as beam search does."""
        self.batch_select_indices(beam_idx.long())

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows with the given indices."""
        for layer in self.stored_layers:
            layer.keys, layer.values = layer.keys[indices], layer.values[indices]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row `repeats` times."""
        for layer in self.stored_layers:
            layer.keys, layer.values = (
                stored.repeat_interleave(repeats, dim=0) for stored in (layer.keys, layer.values)
            )

    def bytes_per_token(self) -> float:
        """Return the bytes of cached keys and values per token, without unused capacity.

        Raises:
            ConfigError: If the cache is empty.
        """
        first: Any = self.layers[0]
        if not first.is_initialized:
            raise ConfigError(f"bytes_per_token: the cache is empty{self.estimate}")
        both = (first.keys, first.values)
        one = sum(tensor.shape[2] * tensor.shape[4] * tensor.element_size() for tensor in both)
        layers: list[Any] = self.layers
        return one * sum(layer.entries for layer in layers)


# ---- Keys and values without attention


class _StopForward(Exception):
    """Exception that stops the forward pass of a layer once its keys and values are recorded."""


class _KeyValueRecorder:
    """Fake cache that records the keys and values of a layer, and then stops the layer's forward pass."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.recorded = keys, values
        raise _StopForward

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def record_keys_and_values(layer: nn.Module, states: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Return the keys and values, (B, h, T, d) each, that a decoder layer computes from states, (B, T, D).

    Its forward pass, called with the given further arguments, is stopped when it would cache them.
    """
    recorder = _KeyValueRecorder()
    try:
        layer(states, *arguments, **{**options, CACHE_ARGUMENT: recorder})
    except _StopForward:
        return recorder.recorded
    raise AssertionError("the layer did not cache keys and values")


def compute_keys_and_values(layers: Iterable[nn.Module], states: Tensor, rotation: Any, positions: Tensor) -> list[Any]:
    """Compute the keys and values, (B, h, T, d) each, that every layer would produce from the same states, (B, T, D).

    A layer of another decoder has no method for keys and values; see `record_keys_and_values`.
    """
    results = []
    for layer in layers:
        direct: Any = getattr(layer, "compute_keys_and_values", None)
        options = {"position_embeddings": rotation, "position_ids": positions}
        results.append(record_keys_and_values(layer, states, **options) if direct is None else direct(states, rotation))
    return results
