"""What the PAR Transformer-XL returns.

Shape legend: B rows, T new tokens, M remembered positions, d width, V words, N blocks, A blocks that can attend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.utils import ModelOutput

from adadepth.families.par_xl.architectures import OPERATIONS
from adadepth.families.par_xl.blocks import IDENTITY, Mix
from adadepth.halting.trace import DepthTrace, Execution, Operations


@dataclass
class ParXLModelOutput(ModelOutput):
    """What the blocks make of a segment.

    Attributes:
        last_hidden_state: What the output layer reads, (B, T, d).
        memory: For the next segment of the same rows, (A, B, M', d) with M' up to the context's, detached; None where a
            cache holds the text so far.
        past_key_values: The cache that was given or asked for, with this segment.
        hidden_states: The embeddings and the state after every block, N + 1 tensors (B, T, d), on request.
        attentions: The weights of every block that attended, (B, h, T, M + T) each, on request.
    """

    last_hidden_state: Tensor | None = None
    memory: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class ParXLOutput(ModelOutput):
    """Predictions of one segment.

    Attributes:
        loss: Sum of `loss_parts`, when labels or targets are given.
        loss_parts: `lm`, and `latency` where it has a weight: normalised and weighted.
        logits: Log-probabilities of the next token, float32, (B, T, V); not with targets.
        token_losses: Of every target in row-major order, nats, float32, detached.
        memory: See `ParXLModelOutput`, as for the three that follow.
        past_key_values: See there.
        hidden_states: See there.
        attentions: See there.
        gate_probabilities: Of a supernet softmax(a), without noise, float32, (N, 3), differentiable.
        trace: Which operations ran, with which weights.
    """

    loss: Tensor | None = None
    loss_parts: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    token_losses: Tensor | None = None
    memory: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    gate_probabilities: Tensor | None = None
    trace: DepthTrace | None = None


def one_hot(path: Sequence[int], device: torch.device) -> Tensor:
    """The weights of a path of N operations, float32, (N, 3)."""
    return nn.functional.one_hot(torch.tensor(path, device=device), len(OPERATIONS)).float()


def trace_of(weights: Tensor, mixes: Sequence[Mix], real: Tensor, remembered: int) -> DepthTrace:
    """What ran: weights (N, 3) and mixes of the blocks, which of the tokens are no padding (B, T), and M."""
    executed = [[operation in mix for operation in range(len(OPERATIONS))] for mix in mixes]
    return DepthTrace(
        unit="architecture",
        updates=(1.0 - weights[:, IDENTITY]).sum(dim=0, keepdim=True),
        valid=torch.ones(1, dtype=torch.bool, device=real.device),
        max_depth=len(mixes),
        execution=Execution(
            sum(any(operation != IDENTITY for operation in mix) for mix in mixes),
            tokens=real.sum(dim=1),
            width=real.shape[1],
            memory_length=remembered,
        ),
        operations=Operations(weights, executed=torch.tensor(executed, device=real.device)),
    )
