"""The active set of a batch: which of its positions still take part, packed one after the other.

A unit that has halted keeps its state for good. Where the layer is the same in every iteration, its keys and values
then stay what they are as well, so an iteration needs queries of the running positions only, keys and values of the
positions whose state has changed, and nothing of padding; docs/ragged_execution.md has the argument. Here is the
bookkeeping: pure index arithmetic that knows no model.

Shape legend: B rows of a batch, T positions of a row, P packed positions, Q the most that any row has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ActiveSet:
    """Positions of a padded batch (B, T), row by row and from left to right.

    Attributes:
        slots: b T + t of each, int64, ascending, (P,).
        shape: B and T.
    """

    slots: Tensor
    shape: tuple[int, int]

    @property
    def capacity(self) -> int:
        """Positions of the whole batch, B T."""
        return self.shape[0] * self.shape[1]

    @cached_property
    def rows(self) -> Tensor:
        """The row of each position, (P,)."""
        return torch.div(self.slots, self.shape[1], rounding_mode="floor")

    @cached_property
    def ranks(self) -> Tensor:
        """Where each position of the batch stands among the packed ones, -1 where it is none, int64, (B T,)."""
        nowhere = torch.full((self.capacity,), -1, dtype=torch.int64, device=self.slots.device)
        return nowhere.index_copy_(0, self.slots, torch.arange(len(self.slots), device=self.slots.device))

    @cached_property
    def counts(self) -> Tensor:
        """How many of the positions each row has, int64, (B,)."""
        zeros = torch.zeros(self.shape[0], dtype=torch.int64, device=self.slots.device)
        return zeros.index_add(0, self.rows, torch.ones_like(self.slots))

    @cached_property
    def widest(self) -> int:
        """The most that any row has, Q, and at least 1: no kernel likes an empty grid. Waits for the device.

        A single row knows its number without waiting.
        """
        return max(1, len(self.slots) if self.shape[0] == 1 else int(self.counts.max()))

    @cached_property
    def starts(self) -> Tensor:
        """Where each row begins among the packed positions, and where the last one ends, int32, (B + 1,)."""
        return torch.nn.functional.pad(self.counts.cumsum(0), (1, 0)).to(torch.int32)

    @cached_property
    def grid(self) -> Tensor:
        """Where each position stands when the rows are padded to Q: b Q + its rank in its row, (P,)."""
        rank = torch.arange(len(self.slots), device=self.slots.device) - self.starts[self.rows]
        return self.rows * self.widest + rank


def pack(chosen: Tensor) -> ActiveSet:
    """The chosen positions of a batch; waits for the device.

    Args:
        chosen: Boolean, (B, T).
    """
    return ActiveSet(chosen.flatten().nonzero().squeeze(1), (chosen.shape[0], chosen.shape[1]))


def split(running: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return which of P packed positions run on, and which have halted, without waiting for the device.

    Args:
        running: Whether each runs, boolean, (P,).
        count: Number of those that run, P'.

    Returns:
        Positions in the packing, int64, each ascending: (P',) and (P - P',).
    """
    order = torch.argsort(running, descending=True, stable=True)
    return order[:count], order[count:]


def scatter(base: Tensor, slots: Tensor, values: Tensor) -> Tensor:
    """A copy of `base` (B, T, ...), in the precision of the values (P, ...), in which the slots hold those."""
    return base.to(values.dtype).flatten(0, 1).index_copy(0, slots, values).view(base.shape)


def take(values: Tensor, positions: Tensor) -> Tensor:
    """The values (P, ...) at some positions, each named once, int64, (P',)."""
    if not (values.requires_grad and torch.is_grad_enabled()):
        return values.index_select(0, positions)
    taken: Tensor = _Take.apply(values, positions)
    return taken


class _Take(torch.autograd.Function):
    """`index_select` whose gradient is written, not added up: no position is taken twice, which autograd cannot know.

    On a CPU the library's own gradient costs as much as a feed-forward layer.
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
