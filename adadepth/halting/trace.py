"""Depth trace: a record of the number of block updates that each token, sequence or task of a batch received.

Statistics, reports and benchmarks read only traces, so they work for any model family that fills a trace. Every family
fills the core fields. Details that only some families have are optional fields with separate types.

Shape legend: B batch, T tokens, N iterations that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    import pandas as pd

Detail = TypeVar("Detail")

DepthUnit = Literal["token", "sequence", "task", "architecture"]


def register_trace_part(kind: type[Detail]) -> type[Detail]:
    """Register a dataclass of the depth trace as a pytree node, which `torch.export` and sharding require."""
    pytree.register_dataclass(kind, field_names=[field.name for field in fields(kind)])  # type: ignore[arg-type]
    return kind


class ComputedSteps(NamedTuple):
    """Number of rows and query-key pairs computed in each iteration of a batch, padding included; int64, (N,).

    Attributes:
        queries: Number of rows for which the query, the feed-forward layer and the halting unit were computed.
        keys: Number of rows for which keys and values were computed.
        pairs: Number of query-key pairs in the attention.
    """

    queries: Tensor
    keys: Tensor
    pairs: Tensor

    @classmethod
    def from_counts(cls, steps: Sequence[tuple[int, int, Tensor | int]]) -> ComputedSteps:
        """Build the object from a list with one triple (queries, keys, pairs) for each iteration."""
        queries, keys, pairs = zip(*steps, strict=True)
        return cls(torch.tensor(queries), torch.tensor(keys), torch.stack([torch.as_tensor(pair) for pair in pairs]))


@register_trace_part
@dataclass(frozen=True)
class Execution:
    """Shapes and lengths of the computation executed for a batch, from which its MACs are counted.

    Attributes:
        steps: Number of iterations N. It is at least the number of updates of the deepest unit. It is larger if units
            waited for a slot, so that units of one iteration were at different steps.
        tokens: Number of real tokens of each sequence, int64, (B,), if the unit is a sequence or only some of its
            tokens. None for other inputs.
        width: Padded length of the rows, either one number for all iterations or one number for each, int64, (N,).
        rows: Number of rows that each iteration computed, int64, (N,), or None if no row left the batch.
        computed: Counts of each iteration, if iterations compute only some of the units.
        memory_length: Number of positions from earlier batches that attention could read.
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
    """Halting probabilities and ACT remainders of the tokens or sequences of a batch, float32.

    Attributes:
        probabilities: Halting probability of each iteration, (*updates.shape, N). It is 0 after a unit has halted.
        remainders: Difference between one and the halting sum at the last update, shape of `updates`. None if the model
            has no halting sums.
    """

    probabilities: Tensor
    remainders: Tensor | None = None


@register_trace_part
@dataclass(frozen=True)
class Operations:
    """Weights of the K candidate operations in each of the N blocks of a supernet (architecture search).

    Attributes:
        weights: Weight of every operation, float32, (N, K).
        executed: Mask of the executed operations, boolean, (N, K).
    """

    weights: Tensor
    executed: Tensor


@register_trace_part
@dataclass(frozen=True)
class DepthTrace:
    """Record of the number of block updates that each token, sequence or task of a batch received.

    Attributes:
        unit: Unit that halts: a token, a sequence, a task or a whole architecture.
        updates: Number of block applications of each unit, including its last one; 0 where `valid` is false. Shape (B,
            T) for tokens, (B,) for sequences.
        valid: Mask of the real units, boolean, shape of `updates`. It is false at padding.
        max_updates: Largest number of updates of a unit.
        ran: Mask of the iterations that each unit ran, boolean, (*updates.shape, N), with `updates` as its sum. None
            means that each unit ran its first `updates` iterations.
        execution: Computation that was executed.
        halting: Halting probabilities and remainders.
        layer_weights: Weights of the states at all depths, if the model mixes them, float32, (max_updates + 1,). Entry
            n is the weight of the state after n updates. A weight of 0 means that the state was not read.
        operations: Weights of the operations of blocks, if blocks choose between several operations.
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
        """Boolean mask of the iterations each unit ran, (*updates.shape, N). Without `ran`, N is `max_updates`."""
        if self.ran is not None:
            return self.ran
        return self.updates.round().unsqueeze(-1) > torch.arange(self.max_updates, device=self.updates.device)

    def to_pandas(self, input_ids: Tensor | None = None) -> pd.DataFrame:
        """Return a data frame with one row for each real unit.

        Its columns are `row`, the number of the sequence in the batch, `position`, if tokens are units, `updates`, and
        `remainder`, if units halt with a remainder R.

        Args:
            input_ids: Token ids, (B, T), for a column `token`. Only token units have one.

        Raises:
            ValueError: If `input_ids` do not have the shape of the units.
        """
        import pandas as pd

        if input_ids is not None and input_ids.shape != self.updates.shape:
            raise ValueError(
                f"input_ids of shape {tuple(input_ids.shape)}: the {self.unit} units of this trace have shape "
                f"{tuple(self.updates.shape)}"
            )
        remainders = None if self.halting is None else self.halting.remainders
        values = {"token": input_ids, "updates": self.updates, "remainder": remainders}
        columns = dict(zip(("row", "position"), self.valid.nonzero().T, strict=False))
        columns |= {name: column[self.valid] for name, column in values.items() if column is not None}
        return pd.DataFrame({name: column.detach().cpu().numpy() for name, column in columns.items()})

    @property
    def executed(self) -> Execution:
        """Computation executed for the batch, which the trace must have recorded.

        Raises:
            ValueError: If the trace has no record of it.
        """
        if self.execution is None:
            raise ValueError(
                f"the depth trace (unit: {self.unit}) has no `execution`, so its compute cannot be counted"
            )
        return self.execution


class Work(NamedTuple):
    """Multiply-accumulates (MACs) of one forward pass: executed, dense, adaptive and at full depth; float64 scalars.

    Attributes:
        executed: Executed compute, padding included.
        dense: Compute of the same batch if every row, including padding, runs until the deepest unit has halted.
        adaptive: Compute at the depths in the trace, without padding.
        full: Compute of the same units at the maximum depth, without padding.
    """

    executed: Tensor
    dense: Tensor
    adaptive: Tensor
    full: Tensor


class StateMaps(NamedTuple):
    """First state of a batch, and the maps that its updates apply.

    Attributes:
        start: State s_0 before the first update, (B, T, S).
        valid: Mask of the real tokens, boolean, (B, T).
        maps: Map f_n of every update, from states to states.
    """

    start: Tensor
    valid: Tensor
    maps: Sequence[Callable[[Tensor], Tensor]]
