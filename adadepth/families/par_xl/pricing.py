"""The work of blocks of attention with a memory, of feed-forward blocks and of identities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from adadepth.families.par_xl.configuration import OPERATIONS, alternating
from adadepth.halting.trace import DepthTrace, Work

if TYPE_CHECKING:
    from adadepth.families.par_xl.configuration import ParXLConfig


def operation_macs(operation: str, length: int, memory: int, batch: int, hidden: int, inner: int) -> float:
    """Multiply-accumulates of one block for one sequence of T new tokens after M remembered ones.

        attention     2 T d^2  +  2 (T+M) d^2  +  (T+M) d^2 / B  +  3 T (T+M) d
                      q and o     k and v         distances         three products
        feed-forward  2 T d F

    The projected distances are the same for all B sequences. Norms, activations and the softmax are not counted, nor is
    the one distance more that `align_distances` needs.

    Args:
        operation: `s`, `f` or `-`.
        length: T.
        memory: M.
        batch: B.
        hidden: d.
        inner: F.
    """
    assert operation in OPERATIONS
    if operation == "-":
        return 0.0
    if operation == "f":
        return 2.0 * length * hidden * inner
    keys = length + memory
    projections = (2 * length + 2 * keys + keys / batch) * hidden**2
    return projections + 3 * length * keys * hidden


def architecture_macs(config: ParXLConfig, architecture: str, length: int, memory: int, batch: int) -> float:
    """Multiply-accumulates of all blocks for one sequence; see `price_par_xl` for what is left out."""
    costs = _operation_costs(config, length, memory, batch)
    return sum(architecture.count(operation) * cost for operation, cost in zip(OPERATIONS, costs, strict=True))


def price_par_xl(config: ParXLConfig, trace: DepthTrace) -> Work:
    """Multiply-accumulates of the blocks in a traced batch.

    `executed` and `dense` count the branches that ran, `adaptive` is the expectation under the weights of the
    operations, and `full` is the alternating architecture with as many blocks. Embedding and output layer are the same
    for all architectures and left out.

    Args:
        config: Widths.
        trace: With `operations`, and in `execution` `tokens`, `width` and `memory_length`.
    """
    ran, operations = trace.executed, trace.operations
    assert ran.tokens is not None
    assert isinstance(ran.width, int)
    assert operations is not None
    batch, blocks = len(ran.tokens), trace.max_depth
    costs = _operation_costs(config, ran.width, ran.memory_length, batch)
    alternated = sum(costs[OPERATIONS.index(operation)] for operation in alternating(blocks))
    column = torch.tensor(costs, dtype=torch.float64, device=operations.weights.device)
    executed = batch * (operations.executed.double() @ column).sum()
    return Work(
        executed=executed,
        dense=executed,
        adaptive=batch * (operations.weights.double() @ column).sum(),
        full=torch.full_like(column[0], batch * alternated),
    )


def _operation_costs(config: ParXLConfig, length: int, memory: int, batch: int) -> list[float]:
    return [
        operation_macs(operation, length, memory, batch, config.hidden_size, config.intermediate_size)
        for operation in OPERATIONS
    ]
