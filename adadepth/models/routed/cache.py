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
from transformers.cache_utils import DynamicLayer

from adadepth.errors import ConfigError
from adadepth.models.depth.cache import Target, TokenCache


class ColumnLayer(DynamicLayer):
    """Cached keys and values of one layer of a routed model, (B, h, m, d), with zeros where a row has no token.

    Args:
        target: Position of the current forward pass.
    """

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Append columns with the keys and values of the rows with chosen tokens, (R, h, r, d), and zeros elsewhere."""
        picked, rows = self._target.picked, self._target.rows
        if picked is not None and len(picked.rows) < rows:
            keys, values = (
                new.new_zeros(rows, *new.shape[1:]).index_copy(0, picked.rows, new) for new in (keys, values)
            )
        super().update(keys, values)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the keys and values for the chosen tokens, (R, h, m, d) each, from their own, (R, h, r, d)."""
        if self._target.appends:
            self.append(key_states, value_states)
        picked, keys, values = self._target.picked, self.keys, self.values
        assert keys is not None
        assert values is not None
        if picked is None or len(picked.rows) == self._target.rows:
            return keys, values
        return keys[picked.rows], values[picked.rows]


class RoutedCache(TokenCache):
    """Keys and values of a routed model, with the policy `selected`.

    Args:
        layers: Number of layers that a token passes if all parts process it.
        spans: Number of parts; see `RoutedConfig.spans`.

    Attributes:
        columns: Token of every column of each part, int64 (B, m), -1 where a row has none; None: one column a token.
    """

    def __init__(self, layers: int, spans: int) -> None:
        target = Target()
        self.columns: list[Tensor | None] = [None] * spans
        self._layer_spans: list[int | None] = [None] * layers
        super().__init__([ColumnLayer(target) for _ in range(layers)], target, "selected")

    def append_columns(self, span: int, layers: range, columns: Tensor) -> Tensor:
        """Append the tokens of new columns, (B, r), to a part with these layers, and return all columns, (B, m)."""
        past = self.columns[span]
        for layer in layers:
            self._layer_spans[layer] = span
        joined = columns if past is None else torch.cat([past, columns], dim=1)
        self.columns[span] = joined
        return joined

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens; their number is given as a negative number, or 0."""
        super().crop(tokens_to_remove)
        for number, stored in enumerate(self.layers):
            if self._layer_spans[number] is None:
                stored.crop(tokens_to_remove)
        for span, columns in enumerate(self.columns):
            if columns is not None:
                self._crop_columns(span, columns.masked_fill(columns >= self.target.before, -1))

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
        self.columns = [None] * len(self.columns)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows with these indices."""
        super().batch_select_indices(indices)
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
        if not self.target.before:
            raise ConfigError("bytes_per_token: the cache is empty")
        stored: list[Tensor] = [tensor for layer in self.stored_layers for tensor in (layer.keys, layer.values)]
        return sum(tensor.nbytes / len(tensor) for tensor in stored) / self.target.before
