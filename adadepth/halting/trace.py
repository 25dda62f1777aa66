"""Depth trace: the report of a model about the depth it allocated.

Statistics, reports and benchmarks read only traces, so a new family that fills a trace gets all of them. Every family
has the core fields; details that only some families have are optional fields with separate types.

Shape legend: B batch, T tokens, N iterations that ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Detail = TypeVar("Detail")

DepthUnit = Literal["token", "sequence", "task", "architecture"]


def register_trace_part(kind: type[Detail]) -> type[Detail]:
    """Register a part of a trace as a pytree node, because `torch.export` and sharding traverse outputs."""
    pytree.register_dataclass(kind, field_names=[field.name for field in fields(kind)])  # type: ignore[arg-type]
    return kind


class ComputedSteps(NamedTuple):
    """Counts of the computation of each iteration over the whole batch, padding included; int64, (N,).

    Attributes:
        queries: Number of rows whose query, feed-forward and halting unit were computed.
        keys: Number of rows whose keys and values were computed.
        pairs: Number of pairs of a query and a key in the attention.
    """

    queries: Tensor
    keys: Tensor
    pairs: Tensor

    @classmethod
    def from_counts(cls, steps: Sequence[tuple[int, int, Tensor | int]]) -> ComputedSteps:
        """Build from the counts of every iteration in order."""
        queries, keys, pairs = zip(*steps, strict=True)
        return cls(torch.tensor(queries), torch.tensor(keys), torch.stack([torch.as_tensor(pair) for pair in pairs]))


@register_trace_part
@dataclass(frozen=True)
class Execution:
    """Executed computation of a batch, which determines its cost.

    Attributes:
        steps: Number of iterations N. At least the updates of the deepest unit; more if units waited for a slot, so
            that units of one iteration were at different steps.
        tokens: Real tokens of each sequence, int64, (B,), if the unit is a sequence, or some of its tokens only; None
            for other inputs.
        width: Padded length of the rows, one for all iterations or one for each, int64, (N,).
        rows: Number of rows that each iteration computed, int64, (N,); None if no row left the batch.
        computed: Counts of each iteration, if iterations compute only some of their units.
        memory_length: Number of positions from earlier batches that attention could see.
    """

    steps: int
    tokens: Tensor | None = None
    width: Tensor | int | None = None
    rows: Tensor | None = None
    computed: ComputedSteps | None = None
    memory_length: int = 0


@register_trace_part
@dataclass(frozen=True)
class Halting:
    """Probabilities and remainders of a halting unit, float32 for any precision of the model.

    Attributes:
        probabilities: Halting probability of each iteration, 0 once a unit has halted; (*updates.shape, N).
        remainders: Difference of the halting sum from one at the last update, shape of `updates`; None without sums.
    """

    probabilities: Tensor
    remainders: Tensor | None = None


@register_trace_part
@dataclass(frozen=True)
class Operations:
    """Weights of K operations in each of N blocks.

    Attributes:
        weights: Weight of every operation, float32, (N, K).
        executed: Mask of the executed operations, boolean, (N, K).
    """

    weights: Tensor
    executed: Tensor


@register_trace_part
@dataclass(frozen=True)
class DepthTrace:
    """Depth of the units of a batch.

    Attributes:
        unit: Unit that halts: a token, a sequence, a task or a whole architecture.
        updates: Block applications of each unit, its last one included; 0 where `valid` is false.
            Shape (B, T) for tokens, (B,) for sequences.
        valid: Mask of the real units, boolean, shape of `updates`; false at padding.
        max_updates: Largest number of updates of a unit.
        ran: Mask of the iterations that each unit ran, boolean, (*updates.shape, N), whose sum is `updates`.
            None: its first `updates` ones.
        execution: Executed computation.
        halting: Halting probabilities and remainders.
        layer_weights: Weights of the states of all depths, if they are mixed, float32, (max_updates + 1,); entry n is
            the state after n updates, and 0 means that it was not read.
        operations: Operations of blocks, if those choose between several.
    """

    unit: DepthUnit
    updates: Tensor
    valid: Tensor
    max_updates: int
    ran: Tensor | None = None
    execution: Execution | None = None
    halting: Halting | None = None
    layer_weights: Tensor | None = None
    operations: Operations | None = None

    @property
    def iterations_run(self) -> Tensor:
        """Whether each unit ran each iteration, boolean (*updates.shape, N); N is `max_updates` where `ran` is None."""
        if self.ran is not None:
            return self.ran
        return self.updates.round().unsqueeze(-1) > torch.arange(self.max_updates, device=self.updates.device)

    @property
    def executed(self) -> Execution:
        """Executed computation.

        Raises:
            ValueError: If the trace has none.
        """
        if self.execution is None:
            raise ValueError(f"a trace of {self.unit} units without `execution` has no known compute")
        return self.execution


class Work(NamedTuple):
    """Multiply-accumulates of one forward pass, float64 scalars on the model's device.

    Attributes:
        executed: Executed compute, padding included.
        dense: Compute of the same batch if every row, padding too, runs until the deepest unit has halted.
        adaptive: Compute of the traced depths, without padding.
        full: Compute of the same units at the maximum depth, without padding.
    """

    executed: Tensor
    dense: Tensor
    adaptive: Tensor
    full: Tensor
