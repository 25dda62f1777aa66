"""Key-value cache for models that compute only some tokens of a batch in a forward pass.

Networks whose tokens exit at different depths run a layer for a part of the tokens of a batch. `Selection` arranges
these tokens in a rectangle, `Target` says where their keys and values belong, and `TokenLayer` stores them.

Shape legend: B rows, T new tokens, M tokens that were there before, R rows with selected tokens, r columns of the
fullest of them, h heads of keys and values, d their width, S entries that a layer stores for a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import CacheLayerMixin

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
    picked: Selection | None = None


@dataclass
class Selection:
    """Subset of the tokens of a batch, such as the running ones, padded to R rows of r columns.

    They are arranged in r columns, the number that the fullest row needs. The host computes all indices once per
    decision, so no layer waits for the device.

    Attributes:
        rows: Indices of the rows, ascending, int64 (R,).
        tokens: Indices of the tokens, ascending in a row, int64 (R, r). Rows with fewer selected tokens are filled with
            unselected tokens.
        real: Whether each of these tokens was selected, boolean (R, r).
        token_rows: Row index of each of the K selected tokens, int64 (K,). None: all tokens of the batch are selected.
        token_columns: Token index of each of them, int64 (K,), or None.
        cells: Index of each selected token among the R r cells, int64 (K,). None: all cells are selected.
        span: The rows as a slice. None: they are not consecutive.
    """

    rows: Tensor
    tokens: Tensor
    real: Tensor
    token_rows: Tensor | None = None
    token_columns: Tensor | None = None
    cells: Tensor | None = None
    span: slice | None = None

    @classmethod
    def from_running(cls, running: Tensor) -> Selection | None:
        """Select the running tokens by their mask, (B, T), or return None if all tokens run.

        The indices are on the device of the mask. The host waits for the mask, unless it is on the host.
        """
        selection = cls.from_mask(running.cpu())
        return None if selection is None else selection.to(running.device)

    @classmethod
    def from_mask(cls, mask: Tensor) -> Selection | None:
        """Select the tokens of a mask on the host, (B, T), or return None if it has all tokens."""
        if bool(mask.all()):
            return None
        counts = mask.sum(dim=1)
        rows, most = counts.nonzero().squeeze(1), int(counts.max())
        tokens = (~mask[rows]).long().argsort(dim=1, stable=True)[:, :most]
        real = torch.arange(most) < counts[rows].unsqueeze(1)
        token_rows, token_columns = mask.nonzero().unbind(1)
        cells = None if len(token_rows) == real.numel() else real.flatten().nonzero().squeeze(1)
        first, last = (int(rows[0]), int(rows[-1])) if most else (0, -1)
        span = slice(first, last + 1) if last + 1 - first == len(rows) else None
        return cls(rows, tokens, real, token_rows, token_columns, cells, span)

    def to(self, device: torch.device) -> Selection:
        """Return the selection with its indices on a device: one copy for all, for which the host does not wait."""
        if device.type == "cpu":
            return self
        columns = (self.rows, self.tokens, self.real, self.token_rows, self.token_columns, self.cells)
        parts = [part for part in columns if part is not None]
        packed = torch.cat([part.flatten().long() for part in parts]).to(device, non_blocking=True)
        uploaded = packed.split([part.numel() for part in parts])
        rows, tokens, real, *copies = (copy.view_as(part) for copy, part in zip(uploaded, parts, strict=True))
        optional = iter(copies)
        token_rows, token_columns, cells = (None if column is None else next(optional) for column in columns[3:])
        return Selection(rows, tokens, real.bool(), token_rows, token_columns, cells, self.span)

    def take(self, values: Tensor) -> Tensor:
        """Gather the values of the selected tokens, (R, r, ...), from a batch, (B, T, ...)."""
        return values[self.rows.unsqueeze(1), self.tokens]

    def put(self, values: Tensor, computed: Tensor) -> Tensor:
        """Return `values`, (B, T, ...), in which `computed`, (R, r, ...), replaces those of the selected tokens."""
        if self.token_rows is None or self.token_columns is None:
            return computed
        return values.index_put((self.token_rows, self.token_columns), self.flatten(computed))

    def flatten(self, computed: Tensor) -> Tensor:
        """Return the values of the selected tokens, (K, ...), from those of all cells, (R, r, ...)."""
        flat = computed.flatten(0, 1)
        return flat if self.cells is None else flat[self.cells]


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


def select_layer_inputs(
    options: Mapping[str, Any], picked: Selection, rows: int, new: int, mask: Tensor | None
) -> dict[str, Any]:
    """Select the tokens in the inputs of a layer by name, and replace its attention mask.

    Args:
        options: Inputs of the layer for all tokens; tables of positions are (B, T, ...) or (1, T, ...).
        picked: Tokens.
        rows: Number B of rows.
        new: Number T of new tokens.
        mask: Attention mask of the tokens.
    """

    def select(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(select(part) for part in value)
        if isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == new:
            return picked.take(value.expand(rows, *value.shape[1:]))
        return value

    return {name: mask if name == "attention_mask" else select(value) for name, value in options.items()}


def select_mask(mask: Tensor | None, picked: Selection, before: int, new: int) -> Tensor | None:
    """Return the attention mask of the selected queries, (R, 1, r, M + T), from that of all queries.

    If `mask` is None, the result is causal. It is None if there is only one new token.
    """
    if mask is not None:
        rows = picked.rows if mask.shape[0] > 1 else torch.zeros_like(picked.rows)
        return mask[rows.unsqueeze(1), :, picked.tokens].transpose(1, 2)
    if new == 1:
        return None
    seen = torch.arange(before + new, device=picked.tokens.device)
    return (seen <= before + picked.tokens.unsqueeze(2)).unsqueeze(1)
