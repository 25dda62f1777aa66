"""What the PAR Transformer-XL returns.

Shape legend: B rows, T new tokens, M remembered positions, d width, V words, N blocks, A blocks that can attend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from adadepth.families.par_xl.architectures import OPERATIONS
from adadepth.families.par_xl.blocks import IDENTITY, Mix
from adadepth.halting.trace import DepthTrace, Execution, Operations


@dataclass
class ParXLOutput(ModelOutput):
    """Predictions of one segment.

    Attributes:
        loss: Sum of `loss_parts`, when targets are given.
        loss_parts: `lm`, and `latency` where it has a weight: normalised and weighted.
        logits: Log-probabilities of the next token, float32, (B, T, V); only without targets.
        token_losses: Of every target in row-major order, nats, float32, detached.
        memory: For the next segment of the same rows, (A, B, M', d) with M' up to the context's, detached.
        hidden_states: The embeddings and the state after every block, N + 1 tensors (B, T, d), on request.
        gate_probabilities: Of a supernet softmax(a), without noise, float32, (N, 3), differentiable.
        trace: Which operations ran, with which weights.
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    token_losses: Tensor | None = None
    memory: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    gate_probabilities: Tensor | None = None
    trace: DepthTrace | None = None


def one_hot(path: Sequence[int], device: torch.device) -> Tensor:
    """The weights of a path of N operations, float32, (N, 3)."""
    return nn.functional.one_hot(torch.tensor(path, device=device), len(OPERATIONS)).float()


def trace_of(weights: Tensor, mixes: Sequence[Mix], input_ids: Tensor, memory: Tensor | None) -> DepthTrace:
    """What ran: weights (N, 3) and mixes of the blocks."""
    (rows, length), device = input_ids.shape, input_ids.device
    executed = [[operation in mix for operation in range(len(OPERATIONS))] for mix in mixes]
    return DepthTrace(
        unit="architecture",
        updates=(1.0 - weights[:, IDENTITY]).sum(dim=0, keepdim=True),
        valid=torch.ones(1, dtype=torch.bool, device=device),
        max_depth=len(mixes),
        execution=Execution(
            sum(any(operation != IDENTITY for operation in mix) for mix in mixes),
            tokens=torch.full((rows,), length, device=device),
            width=length,
            memory_length=0 if memory is None else memory.shape[2],
        ),
        operations=Operations(weights, executed=torch.tensor(executed, device=device)),
    )
