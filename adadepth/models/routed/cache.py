"""Key-value cache of routed models, which stores for each part of the network only the tokens that it processed.

A part that a router skips has no keys and values of a skipped token, so that its rows have different lengths. Every
forward pass appends a rectangle of columns to the layers of a part, as wide as the row with most chosen tokens, and the
cache records which token each column belongs to.

Shape legend: B rows, T new tokens, M tokens that were there before, R rows with chosen tokens, r columns of the fullest
of them, m columns of a part, h heads of keys and values, d their width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from adadepth.errors import ConfigError


class RoutedCache(Cache):
    """Keys and values of a routed model.

    Args:
        layers: Number of layers that a token passes if all parts process it.
        spans: Number of parts; see `RoutedConfig.spans`.

    Attributes:
        length: Number of tokens M in the cache.
        columns: Token of every column of each part, int64 (B, m), -1 where a row has none; None: one column a token.
    """

    def __init__(self, layers: int, spans: int) -> None:
        super().__init__([DynamicLayer() for _ in range(layers)])
        self.length = 0
        self.columns: list[Tensor | None] = [None] * spans
        self._layer_spans: list[int | None] = [None] * layers

    def check_rows(self, rows: int) -> None:
        """Check that a call has as many rows as the cache.

        Raises:
            ConfigError: If it has another number.
        """
        layer: Any = self.layers[0]
        if layer.is_initialized and len(layer.keys) != rows:
            raise ConfigError(f"cache: has {len(layer.keys)} rows, but the call has {rows}")

    def append(self, layer: int, rows: Tensor, batch: int, keys: Tensor, values: Tensor) -> None:
        """Append keys and values of some rows, (R, h, r, d), to a layer; the other of the B rows get zeros."""
        if len(rows) < batch:
            keys, values = (new.new_zeros(batch, *new.shape[1:]).index_copy(0, rows, new) for new in (keys, values))
        self.layers[layer].update(keys, values)

    def read(self, layer: int, rows: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of some rows, (R, h, m, d) each."""
        stored: Any = self.layers[layer]
        keys, values = stored.keys, stored.values
        return (keys, values) if len(rows) == batch else (keys[rows], values[rows])

    def append_columns(self, span: int, layers: range, columns: Tensor) -> Tensor:
        """Append the tokens of new columns, (B, r), to a part with these layers, and return all columns, (B, m)."""
        past = self.columns[span]
        for layer in layers:
            self._layer_spans[layer] = span
        joined = columns if past is None else torch.cat([past, columns], dim=1)
        self.columns[span] = joined
        return joined

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens M."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of keys that a mask covers, M + T, and the first of them, 0."""
        return self.length + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens; their number is given as a negative number, or 0."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): the argument must be minus the number of tokens to remove")
        self.length = max(self.length + tokens_to_remove, 0)
        for number, stored in enumerate(self.layers):
            if self._layer_spans[number] is None:
                stored.crop(tokens_to_remove)
        for span, columns in enumerate(self.columns):
            if columns is not None:
                self._crop_columns(span, columns.masked_fill(columns >= self.length, -1))

    def _crop_columns(self, span: int, columns: Tensor) -> None:
        """Set the tokens of a part's columns, (B, m), and drop the last columns that no row has a token in."""
        used = (columns >= 0).any(dim=0).nonzero()
        width = int(used.max()) + 1 if len(used) else 0
        self.columns[span] = columns[:, :width]
        layers: list[Any] = [layer for number, layer in enumerate(self.layers) if self._layer_spans[number] == span]
        for layer in layers:
            if layer.is_initialized:
                layer.keys, layer.values = layer.keys[:, :, :width], layer.values[:, :, :width]

    def reset(self) -> None:
        """Remove all tokens."""
        super().reset()
        self.length, self.columns = 0, [None] * len(self.columns)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select rows in a new order, as beam search does."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows with these indices."""
        layers: list[Any] = [layer for layer in self.layers if layer.is_initialized]
        for layer in layers:
            layer.keys, layer.values = layer.keys[indices], layer.values[indices]
        self.columns = [None if columns is None else columns[indices] for columns in self.columns]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row `repeats` times."""
        super().batch_repeat_interleave(repeats)
        self.columns = [
            None if columns is None else columns.repeat_interleave(repeats, dim=0) for columns in self.columns
        ]

    def bytes_per_token(self) -> float:
        """Return the bytes of keys and values for a token of a row, averaged over the tokens.

        Raises:
            ConfigError: If the cache is empty.
        """
        if not self.length:
            raise ConfigError("bytes_per_token: the cache is empty")
        layers: list[Any] = [layer for layer in self.layers if layer.is_initialized]
        stored: list[Tensor] = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        return sum(tensor.nbytes / len(tensor) for tensor in stored) / self.length


class LayerView:
    """View of a cache for one application of a layer to chosen tokens; transformers' layers call `update`.

    Args:
        cache: Cache.
        layer: Number of the layer that is read.
        rows: Rows with chosen tokens, int64 (R,).
        batch: Number of rows B.
        appends: Whether `update` appends the keys and values of the chosen tokens to the layer first.
    """

    def __init__(self, cache: RoutedCache, layer: int, rows: Tensor, batch: int, appends: bool) -> None:
        self._cache, self._layer, self._rows, self._batch, self._appends = cache, layer, rows, batch, appends

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the keys and values for the chosen tokens, (R, h, m, d) each, from their own, (R, h, r, d)."""
        if self._appends:
            self._cache.append(self._layer, self._rows, self._batch, keys, values)
        return self._cache.read(self._layer, self._rows, self._batch)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens before the new ones."""
        return self._cache.length
