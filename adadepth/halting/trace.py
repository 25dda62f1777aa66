"""The depth trace: what every model reports about the depth it allocated.

Statistics, reports and benchmarks read traces and nothing else, so a new family that fills a trace gets all of them.

Shape legend: B batch, T tokens, N iterations that ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor


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


@dataclass(frozen=True)
class DepthTrace:
    """The depth that a batch of units was given.

    Halting quantities are float32 whatever precision the model computes in.

    Attributes:
        unit: What halts: a token, a sequence, a task or a whole architecture.
        updates: Block applications each unit received, its last one included; 0 where `valid` is false.
            Shape (B, T) for tokens, (B,) for sequences.
        valid: Boolean, shape of `updates`; false at padding.
        max_depth: The largest number of updates a unit can receive.
        ran: Which of the N iterations each unit ran, boolean, (*updates.shape, N), so that `updates` is their number.
            None: its first `updates` ones.
        remainders: What was left to reach a halting sum of one, shape of `updates`.
        step_probabilities: Halting probability of each iteration, 0 once a unit has halted; (*updates.shape, N).
        executed_steps: Iterations the batch really ran, N. At least the deepest unit's updates.
        tokens: Real tokens of each sequence, int64, (B,), where the unit is a sequence, or some of its tokens only;
            None for other inputs.
        rows_per_step: Rows that each iteration computed, int64, (N,); None when none of them left the batch.
        width: Padded length of the rows, for every iteration or one for each, int64, (N,).
        layer_weights: Where states of several depths are mixed, the weight of each, float32, (max_depth + 1,); entry n
            is the state after n updates, and 0 means that it was not read.
        operation_weights: Where blocks choose between operations, the weight of each, float32, (max_depth, K).
        executed_operations: Which of them really ran, boolean, (max_depth, K).
        memory_length: Positions before the first that attention could see, kept from earlier batches.
        computed: Where iterations compute some of their units only, what each of them did.
    """

    unit: Literal["token", "sequence", "task", "architecture"]
    updates: Tensor
    valid: Tensor
    max_depth: int
    remainders: Tensor | None = None
    step_probabilities: Tensor | None = None
    executed_steps: int | None = None
    tokens: Tensor | None = None
    rows_per_step: Tensor | None = None
    width: Tensor | int | None = None
    layer_weights: Tensor | None = None
    operation_weights: Tensor | None = None
    executed_operations: Tensor | None = None
    memory_length: int = 0
    computed: ComputedSteps | None = None
    ran: Tensor | None = None


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
