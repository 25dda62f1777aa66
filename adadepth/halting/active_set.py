"""Active set of a batch: the positions that are still running, packed into one dimension without gaps.

The state of a halted unit is final. If all iterations share one layer, its keys and values are final too. An iteration
then needs only the queries of running positions, and the keys and values of positions whose state has changed. It needs
no padding. See docs/ragged_execution.md for the argument. This module is pure index arithmetic, independent of any
model.

Shape legend: B rows of a batch, T positions of a row, P packed positions, Q the largest number of packed positions in a
row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ActiveSet:
    """Selected positions of a padded batch (B, T), such as those still running, packed row by row into one dimension.

    Attributes:
        slots: Flat index b T + t of each packed position, int64, ascending, (P,).
        shape: Shape (B, T) of the batch.
    """

    slots: Tensor
    shape: tuple[int, int]

    @property
    def capacity(self) -> int:
        """Number of token positions of the whole padded batch, B T."""
        return self.shape[0] * self.shape[1]

    @cached_property
    def rows(self) -> Tensor:
        """Index b of the batch row to which each packed position belongs, (P,)."""
        return torch.div(self.slots, self.shape[1], rounding_mode="floor")

    @cached_property
    def ranks(self) -> Tensor:
        """Index of each batch position in the packed tensor, or -1 if it is not packed, int64, (B T,)."""
        ranks = torch.full((self.capacity,), -1, dtype=torch.int64, device=self.slots.device)
        return ranks.index_copy_(0, self.slots, torch.arange(len(self.slots), device=self.slots.device))

    @cached_property
    def counts(self) -> Tensor:
        """Number of packed positions in each batch row, int64, (B,)."""
        zeros = torch.zeros(self.shape[0], dtype=torch.int64, device=self.slots.device)
        return zeros.index_add(0, self.rows, torch.ones_like(self.slots))

    @cached_property
    def widest(self) -> int:
        """Largest number Q of packed positions in one batch row, but at least 1, because kernels reject an empty grid.

        This synchronises with the device, unless the batch has a single row.
        """
        return max(1, len(self.slots) if self.shape[0] == 1 else int(self.counts.max()))

    @cached_property
    def starts(self) -> Tensor:
        """Offset of each batch row in the packed tensor, followed by the total number of positions, int32, (B + 1,)."""
        return torch.nn.functional.pad(self.counts.cumsum(0), (1, 0)).to(torch.int32)

    @cached_property
    def grid(self) -> Tensor:
        """Flat index of each packed position after rows are padded to Q positions, b Q + index within its row, (P,)."""
        rank = torch.arange(len(self.slots), device=self.slots.device) - self.starts[self.rows]
        return self.rows * self.widest + rank


def pack(mask: Tensor) -> ActiveSet:
    """Pack the batch positions at which a mask is true into an `ActiveSet`. This synchronises with the device.

    Args:
        mask: Mask of the positions, boolean, (B, T).
    """
    return ActiveSet(mask.flatten().nonzero().squeeze(1), (mask.shape[0], mask.shape[1]))


def split(running: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Split packed positions into running and halted ones, without synchronising with the device.

    Args:
        running: Mask of the P packed positions that are running, boolean, (P,).
        count: Number of running positions, P'.

    Returns:
        Indices of the running and of the halted positions in the packing, int64, each ascending: (P',) and (P - P',).
    """
    order = torch.argsort(running, descending=True, stable=True)
    return order[:count], order[count:]


def scatter(base: Tensor, slots: Tensor, values: Tensor) -> Tensor:
    """Return a copy of `base` (B, T, ...), in the dtype of `values` (P, ...), with `values` written at flat `slots`."""
    return base.to(values.dtype).flatten(0, 1).index_copy(0, slots, values).view(base.shape)


def take(values: Tensor, positions: Tensor) -> Tensor:
    """Select distinct rows of `values` (P, ...) with a fast gradient, for unique `positions`, int64, (P',)."""
    if not (values.requires_grad and torch.is_grad_enabled()):
        return values.index_select(0, positions)
    gathered: Tensor = _GatherRows.apply(values, positions)
    return gathered


class _GatherRows(torch.autograd.Function):
    """Autograd function that selects distinct rows; its gradient is copied instead of accumulated, which is faster.

    Autograd does not know that the positions are distinct, so it adds. On a CPU its gradient takes as long as a
    feed-forward layer.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, positions: Tensor) -> Tensor:
        ctx.save_for_backward(positions)
        ctx.shape = values.shape
        return values.index_select(0, positions)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (positions,) = gradients, ctx.saved_tensors
        return gradient.new_zeros(ctx.shape).index_copy_(0, positions, gradient), None
