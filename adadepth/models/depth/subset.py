"""Subsets of the rows or tokens of a batch, for which a layer runs, with what the host knows about them.

A decision (an exit, a router's choice, a dropped layer) is made once for many layers. A subset therefore holds all
indices that these layers need. The host computes them, or their sizes, so that no layer waits for the device.

Shape legend: B rows, T new tokens, M tokens in a cache, R rows with selected tokens and r columns of the fullest of
them, K selected tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from adadepth.runtime.devices import upload

ATTENTION_MASK = "attention_mask"


@dataclass
class RowSubset:
    """Subset of the rows of a batch.

    Attributes:
        rows: Indices of the rows, ascending, int64 (R,).
    """

    rows: Tensor
    # Dimension of the batch whose size tells which inputs of a layer are selected, and an input that never is.
    dimension: ClassVar[int] = 0
    unselected: ClassVar[str | None] = None

    def take(self, values: Tensor) -> Tensor:
        """Gather the values of the rows, (R, ...), from a batch, (B, ...)."""
        return values[self.rows]

    def put(self, values: Tensor, computed: Tensor) -> Tensor:
        """Return `values`, (B, ...), in which `computed`, (R, ...), replaces those of the rows."""
        return values.index_copy(0, self.rows, computed)

    def select_inputs(self, inputs: Any, batch: tuple[int, int], selected: dict[int, Any]) -> Any:
        """Select these rows or tokens in the inputs of a layer, a nest of tuples and dictionaries.

        Rows are selected in all tensors and masks of flex attention that have one for each row of the batch. Tokens are
        selected in all tables with one column for each token, (B, T, ...) or (1, T, ...), except for attention masks;
        see `TokenSubset.select_mask`.

        Args:
            inputs: Inputs for the batch.
            batch: B and T.
            selected: Results so far by the identity of the input, because layers share most inputs.
        """
        if isinstance(inputs, tuple):
            return tuple(self.select_inputs(part, batch, selected) for part in inputs)
        if isinstance(inputs, dict):
            return {
                name: value if name == self.unselected else self.select_inputs(value, batch, selected)
                for name, value in inputs.items()
            }
        dimension = self.dimension
        is_table = isinstance(inputs, Tensor | BlockMask) and len(inputs.shape) > dimension
        if not is_table or inputs.shape[dimension] != batch[dimension]:
            return inputs
        if id(inputs) not in selected:
            selected[id(inputs)] = self._select(inputs, batch[0])
        return selected[id(inputs)]

    def _select(self, value: Any, rows: int) -> Any:
        """Select the rows of a tensor or mask."""
        if not isinstance(value, BlockMask):
            return self.take(value)
        chosen, mask_mod = value[self.rows], value.mask_mod
        chosen.mask_mod = lambda row, head, query, key: mask_mod(self.rows[row], head, query, key)
        return chosen


@dataclass
class TokenSubset(RowSubset):
    """Subset of the tokens of a batch, padded to R rows of r columns.

    Attributes:
        tokens: Indices of the tokens, ascending in a row, int64 (R, r). Rows with fewer selected tokens are filled with
            unselected tokens.
        real: Whether each of these tokens was selected, boolean (R, r).
        token_rows: Row index of each of the K selected tokens, int64 (K,), if the host knows them.
        token_columns: Token index of each of them, int64 (K,), or None with `token_rows`.
        cells: Index of each selected token among the R r cells, int64 (K,). None: the host does not know them, or all
            cells are selected.
        span: The rows as a slice. None: the host does not know them, or they are not consecutive.
        is_full: Whether all cells hold a selected token, as far as the host knows.
        covers_batch: Whether the cells are those of the batch, in this order: R is B, and r is T.
        causal_pairs: Number of tokens of the batch up to that of each cell, summed, if the host knows the cells.
    """

    tokens: Tensor
    real: Tensor
    token_rows: Tensor | None = None
    token_columns: Tensor | None = None
    cells: Tensor | None = None
    span: slice | None = None
    is_full: bool = False
    covers_batch: bool = False
    causal_pairs: int = 0
    dimension: ClassVar[int] = 1
    unselected: ClassVar[str | None] = ATTENTION_MASK

    @classmethod
    def from_mask(cls, mask: Tensor, device: torch.device) -> Self | None:
        """Select the tokens of a mask on the host, (B, T), or return None if it has all tokens.

        All indices are copied to the device at once, and the host does not wait for it.
        """
        if bool(mask.all()):
            return None
        counts = mask.sum(dim=1)
        rows, most = counts.nonzero().squeeze(1), int(counts.max())
        tokens = (~mask[rows]).long().argsort(dim=1, stable=True)[:, :most]
        real = torch.arange(most) < counts[rows].unsqueeze(1)
        token_rows, token_columns = mask.nonzero().unbind(1)
        is_full, causal_pairs = len(token_rows) == real.numel(), int((tokens + 1).sum())
        cells = [] if is_full else [real.flatten().nonzero().squeeze(1)]
        first, last = (int(rows[0]), int(rows[-1])) if most else (0, -1)
        span = slice(first, last + 1) if last + 1 - first == len(rows) else None
        indices = [rows, tokens, real, token_rows, token_columns, *cells]
        if device.type != "cpu":
            packed = torch.cat([part.flatten().long() for part in indices]).to(device, non_blocking=True)
            copies = packed.split([part.numel() for part in indices])
            indices = [copy.view_as(part) for copy, part in zip(copies, indices, strict=True)]
            indices[2] = indices[2].bool()
        rows, tokens, real, token_rows, token_columns, *cells = indices
        known = cells[0] if cells else None
        return cls(rows, tokens, real, token_rows, token_columns, known, span, is_full, causal_pairs=causal_pairs)

    @classmethod
    def from_counts(cls, chosen: Tensor, counts: Tensor) -> Self:
        """Select the chosen tokens, boolean (B, T), by their number in each row, int64 (B,), which is on the host."""
        rows, most = counts.nonzero().squeeze(1), int(counts.max())
        is_full = bool((counts[rows] == most).all())
        rows = upload(rows, chosen.device)
        chosen = chosen[rows]
        tokens = (~chosen).long().argsort(dim=1, stable=True)[:, :most]
        return cls(rows, tokens, chosen.gather(1, tokens), is_full=is_full)

    @classmethod
    def from_batch(cls, chosen: Tensor) -> Self:
        """Select chosen tokens, boolean (B, T), whose number is unknown: all tokens run, and others keep their values.

        All shapes are then those of the batch, as a compiled graph requires.
        """
        rows, tokens = (torch.arange(size, device=chosen.device) for size in chosen.shape)
        return cls(rows, tokens.expand(chosen.shape), chosen, covers_batch=True)

    @property
    def cell_count(self) -> int:
        """Number of cells, R r."""
        return self.tokens.numel()

    def take(self, values: Tensor) -> Tensor:
        """Gather the values of the tokens, (R, r, ...), from a batch, (B, T, ...)."""
        return values[self.rows.unsqueeze(1), self.tokens]

    def put(self, values: Tensor, computed: Tensor) -> Tensor:
        """Return `values`, (B, T, ...), in which `computed`, (R, r, ...), replaces those of the selected tokens."""
        if self.token_rows is not None and self.token_columns is not None:
            return values.index_put((self.token_rows, self.token_columns), self.flatten(computed))
        if not self.is_full:
            computed = torch.where(
                self.real.unsqueeze(-1), computed, values if self.covers_batch else self.take(values)
            )
        return computed if self.covers_batch else values.index_put((self.rows.unsqueeze(1), self.tokens), computed)

    def flatten(self, computed: Tensor) -> Tensor:
        """Return the values of the selected tokens, (K, ...), from those of all cells, (R, r, ...)."""
        flat = computed.flatten(0, 1)
        return flat if self.cells is None else flat[self.cells]

    def _select(self, value: Any, rows: int) -> Any:
        return self.take(value.expand(rows, *value.shape[1:]))

    def select_mask(self, mask: Tensor | None, before: int, new: int, selected: dict[int, Any]) -> Tensor | None:
        """Return the attention mask of the selected queries, (R, 1, r, M + T), from that of all queries.

        If `mask` is None, the result is causal. It is None if there is only one new token.

        Args:
            mask: Mask of all queries, (B, 1, T, M + T) or (1, 1, T, M + T), or None.
            before: Number M of tokens in the cache.
            new: Number T of new tokens.
            selected: Results so far by the identity of the mask, because layers share masks.
        """
        if id(mask) not in selected:
            selected[id(mask)] = self._build_mask(mask, before, new)
        result: Tensor | None = selected[id(mask)]
        return result

    def _build_mask(self, mask: Tensor | None, before: int, new: int) -> Tensor | None:
        if mask is not None:
            rows = self.rows if mask.shape[0] > 1 else torch.zeros_like(self.rows)
            return mask[rows.unsqueeze(1), :, self.tokens].transpose(1, 2)
        if new == 1:
            return None
        seen = torch.arange(before + new, device=self.tokens.device)
        return (seen <= before + self.tokens.unsqueeze(2)).unsqueeze(1)
