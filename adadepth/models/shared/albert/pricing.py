"""MAC counts of ALBERT: for one update, for sequences of different depths, and for packed tokens."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor
from transformers import AlbertConfig

from adadepth.halting.trace import ComputedSteps, DepthTrace, Work
from adadepth.models.shared.albert.configuration import AlbertShape

Number = TypeVar("Number", int, Tensor)


def update_work(config: AlbertShape | AlbertConfig, seen: Number) -> Number:
    """Return the MACs of one block update of one token: 4 H^2 + 2 S H + 2 H F.

    Args:
        config: Configuration with the widths H and F.
        seen: Number of tokens that the token attends to, S.
    """
    hidden = config.hidden_size
    return 4 * hidden**2 + 2 * seen * hidden + 2 * hidden * config.intermediate_size


def price_sequences(
    config: AlbertShape | AlbertConfig, trace: DepthTrace, *, each_step: float, once: float = 0.0
) -> Work:
    """Return the MACs of a batch from its depth trace, with heads but without embedding lookups.

    A step of a sequence of S tokens costs S updates (see `update_work`) and the heads that read the step.

    Args:
        config: Configuration with the widths E, H, F.
        trace: Trace with `execution`, which has `tokens`. If `execution` has no `rows` and `width`, every step counts
            all rows at the length of the longest. If it has `computed`, these counts of the layer replace rows times
            width.
        each_step: Multiply-accumulates per sequence and step of the heads that read every step.
        once: Multiply-accumulates per sequence of the heads that read only the last step.
    """
    ran = trace.executed
    assert ran.tokens is not None
    entry = config.embedding_size * config.hidden_size

    def step_work(length: Tensor) -> Tensor:
        return length * update_work(config, length) + each_step

    updates, valid, tokens = trace.updates.double(), trace.valid.double(), ran.tokens.double()
    outside_steps = tokens * entry + once
    adaptive = updates * step_work(tokens) + outside_steps
    full = trace.max_updates * step_work(tokens) + outside_steps

    width = tokens.max() if ran.width is None else ran.width
    widths = torch.as_tensor(width, dtype=torch.float64, device=tokens.device).expand(ran.steps)
    rows = torch.full_like(widths, len(updates)) if ran.rows is None else ran.rows.to(widths)
    dense_outside_steps = len(updates) * (widths[0] * entry + once)
    dense = len(updates) * updates.max() * step_work(widths[0]) + dense_outside_steps
    if ran.computed is None:
        blocks = (rows * step_work(widths)).sum()
    else:
        blocks = computed_work(config, ran.computed).to(dense) + each_step * rows.sum()
    return Work(blocks + dense_outside_steps, dense, (adaptive * valid).sum(), (full * valid).sum())


def computed_work(config: AlbertShape | AlbertConfig, computed: ComputedSteps) -> Tensor:
    """Return the MACs of a shared layer, float64, (), from its counts of queries, keys and query-key pairs.

    A query and its feed-forward part cost 2 H^2 + 2 H F, a key and its value 2 H^2, a query-key pair 2 H.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys, pairs = (counts.double().sum() for counts in computed)
    return queries * (2 * hidden**2 + 2 * hidden * inner) + keys * 2 * hidden**2 + pairs * 2 * hidden
