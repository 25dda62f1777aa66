"""Key-value cache for models that compute only some tokens of a batch in a forward pass.

Networks whose tokens exit at different depths run a layer for a part of the tokens of a batch. `Target` says where the
keys and values of these tokens belong, and `TokenLayer` stores them.

Shape legend: B rows, T new tokens, M tokens that were there before, R rows with selected tokens, r columns of the
fullest of them, h heads of keys and values, d their width, S entries that a layer stores for a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import CacheLayerMixin

from adadepth.models.depth.subset import TokenSubset
from adadepth.models.shared.cache_argument import CACHE_ARGUMENT


@dataclass
class Target:
    """Position in a key-value cache at which the current forward pass writes.

    Attributes:
        before: Number M of earlier tokens in the cache.
        new: Number T of new tokens.
        rows: Number B of rows.
        loop: Current loop, counted from 0, or -1 before the first loop.
        picked: Tokens for which keys and values are written, or None for all tokens.
    """

    before: int = 0
    new: int = 0
    rows: int = 0
    loop: int = -1
    picked: TokenSubset | None = None


_SLACK = 64  # tokens by which a full layer grows at least


class TokenLayer(CacheLayerMixin):
    """Cached keys and values of one layer, (B, S, h, capacity, d), of which the first M positions are filled.

    Args:
        target: Position of the current forward pass, shared by all layers of a cache.
        entries: Number S of entries per token.
    """

    is_sliding = False
    is_croppable = True
    supports_early_init = False
    keys: Any  # a tensor, once there is a token
    values: Any

    def __init__(self, target: Target, entries: int = 1) -> None:
        super().__init__()
        self._target, self._entries, self._length = target, entries, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Create empty key and value tensors for the rows of the current forward pass."""
        self.keys, self.values = (
            new.new_zeros(self._target.rows, self._entries, new.shape[1], 0, new.shape[3])
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

    def close(self, length: int) -> None:
        """Set the number M of filled tokens at the end of a forward pass."""
        self._length = length

    def get_seq_length(self) -> int:
        """Return the number M of filled tokens."""
        return self._length

    def get_max_length(self) -> int:
        """Return -1, because the cache can grow without limit."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys, M + T, and the offset of the first key, 0."""
        return self._length + query_length, 0

    def reset(self) -> None:
        """Remove all tokens from the cache."""
        self.keys = self.values = None
        self.is_initialized = False
        self.close(0)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens from the cache.

        Args:
            tokens_to_remove: Number of tokens to remove, given as a negative number, or 0.

        Raises:
            ValueError: If the number is positive.
        """
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): the argument must be minus the number of tokens to remove")
        self._length = max(self._length + tokens_to_remove, 0)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the cache `repeats` times."""
        if self.is_initialized:
            self.keys, self.values = (stored.repeat_interleave(repeats, dim=0) for stored in (self.keys, self.values))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the batch rows with the given indices."""
        if self.is_initialized:
            self.keys, self.values = self.keys[indices], self.values[indices]

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


class _StopForward(Exception):
    """Exception that stops the forward pass of a layer once its keys and values are recorded."""


class _KeyValueRecorder:
    """Fake cache that records the keys and values of a layer, and then stops the layer's forward pass."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.recorded = keys, values
        raise _StopForward

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


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
