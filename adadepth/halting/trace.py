"""The depth trace: what every model reports about the depth it allocated.

Statistics, reports and benchmarks read traces and nothing else, so a new family that fills a trace gets all of them.
The core is what every unit of every family has; what only some families know stands beside it in details of their own
type, each absent where nobody filled it.

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


def traced(kind: type[Detail]) -> type[Detail]:
    """Let torch look into a part of a trace, as into any container: `torch.export` and sharding walk outputs."""
    pytree.register_dataclass(kind, field_names=[field.name for field in fields(kind)])  # type: ignore[arg-type]
    return kind


class ComputedSteps(NamedTuple):
    """What each iteration computed over the whole batch, padding included; int64, (N,).

    Attributes:
        queries: Rows whose query, feed-forward and halting unit were computed.
        keys: Rows whose keys and values were computed.
        pairs: Pairs of a query and a key in the attention.
    """

    queries: Tensor
    keys: Tensor
    pairs: Tensor

    @classmethod
    def of(cls, steps: Sequence[tuple[int, int, Tensor | int]]) -> ComputedSteps:
        """From the counts of one iteration after the other."""
        queries, keys, pairs = zip(*steps, strict=True)
        return cls(torch.tensor(queries), torch.tensor(keys), torch.stack([torch.as_tensor(pair) for pair in pairs]))


@traced
@dataclass(frozen=True)
class Execution:
    """What really ran, which is what a batch costs.

    Attributes:
        steps: Iterations that the batch ran, N. At least the deepest unit's updates; more where units waited for a
            place, so that an iteration had units at different steps of their own.
        tokens: Real tokens of each sequence, int64, (B,), where the unit is a sequence, or some of its tokens only;
            None for other inputs.
        width: Padded length of the rows, for every iteration or one for each, int64, (N,).
        rows: Rows that each iteration computed, int64, (N,); None when none of them left the batch.
        computed: Where iterations compute some of their units only, what each of them did.
        memory_length: Positions before the first that attention could see, kept from earlier batches.
    """

    steps: int
    tokens: Tensor | None = None
    width: Tensor | int | None = None
    rows: Tensor | None = None
    computed: ComputedSteps | None = None
    memory_length: int = 0


@traced
@dataclass(frozen=True)
class Halting:
    """How units came to halt, where a halting unit says so. Float32 whatever precision the model computes in.

    Attributes:
        probabilities: Halting probability of each iteration, 0 once a unit has halted; (*updates.shape, N).
        remainders: What was left to reach a halting sum of one, shape of `updates`; None where nothing is summed.
    """

    probabilities: Tensor
    remainders: Tensor | None = None


@traced
@dataclass(frozen=True)
class Operations:
    """What each of N blocks chose of K operations.

    Attributes:
        weights: Of every operation, float32, (N, K).
        executed: Which of them really ran, boolean, (N, K).
    """

    weights: Tensor
    executed: Tensor


@traced
@dataclass(frozen=True)
class DepthTrace:
    """The depth that a batch of units was given.

    Attributes:
        unit: What halts: a token, a sequence, a task or a whole architecture.
        updates: Block applications each unit received, its last one included; 0 where `valid` is false.
            Shape (B, T) for tokens, (B,) for sequences.
        valid: Boolean, shape of `updates`; false at padding.
        max_updates: The largest number of updates a unit can receive.
        ran: Which of the N iterations each unit ran, boolean, (*updates.shape, N), so that `updates` is their number.
            None: its first `updates` ones.
        execution: What really ran.
        halting: Probabilities and remainders.
        layer_weights: Where states of several depths are mixed, each weight, float32, (max_updates + 1,); entry n
            is the state after n updates, and 0 means that it was not read.
        operations: Where blocks choose between operations, what they chose.
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
        """What really ran.

        Raises:
            ValueError: If the trace does not say so.
        """
        if self.execution is None:
            raise ValueError(f"a trace of {self.unit} units without `execution` cannot be priced")
        return self.execution


class Work(NamedTuple):
    """Multiply-accumulates of one forward pass, float64 scalars on the model's device.

    `executed` really ran, padding included. `dense` is what the same batch costs where every row, padding too, runs
    until its deepest unit has halted. `adaptive` is what the traced depths need, `full` what the same units would need
    at the maximum depth: neither counts padding.
    """

    executed: Tensor
    dense: Tensor
    adaptive: Tensor
    full: Tensor
