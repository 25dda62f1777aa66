"""The work of an ALBERT whose sequences have depths of their own, and of a layer that computes some of its tokens."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor
from transformers import AlbertConfig

from adadepth.families.shared.albert.configuration import AlbertShape
from adadepth.halting.trace import ComputedSteps, DepthTrace, Work

Number = TypeVar("Number", int, Tensor)


def update_work(config: AlbertShape | AlbertConfig, seen: Number) -> Number:
    """Multiply-accumulates of an update of one token among so many: 4 H^2, 2 S H for attention, 2 H F."""
    hidden = config.hidden_size
    return 4 * hidden**2 + 2 * seen * hidden + 2 * hidden * config.intermediate_size


def price_sequences(
    config: AlbertShape | AlbertConfig, trace: DepthTrace, *, each_step: float, once: float = 0.0
) -> Work:
    """Multiply-accumulates of a traced batch, heads included; the embeddings' lookups are not counted.

    A step of S tokens costs S updates, see `update_work`, and its heads.

    Args:
        config: Widths E, H, F.
        trace: With `execution` and its `tokens`. Without its `rows` and `width`, all rows are taken to have run every
            step at the longest one's length. With `computed`, the layer's own count replaces rows times width.
        each_step: Work of the heads that read every step, for one sequence.
        once: Work of the heads that read the last step only.
    """
    ran = trace.executed
    assert ran.tokens is not None
    entry = config.embedding_size * config.hidden_size

    def step_work(length: Tensor) -> Tensor:
        return length * update_work(config, length) + each_step

    updates, valid, tokens = trace.updates.double(), trace.valid.double(), ran.tokens.double()
    before_and_after = tokens * entry + once
    adaptive = updates * step_work(tokens) + before_and_after
    full = trace.max_updates * step_work(tokens) + before_and_after

    width = tokens.max() if ran.width is None else ran.width
    widths = torch.as_tensor(width, dtype=torch.float64, device=tokens.device).expand(ran.steps)
    rows = torch.full_like(widths, len(updates)) if ran.rows is None else ran.rows.to(widths)
    around = len(updates) * (widths[0] * entry + once)
    dense = len(updates) * updates.max() * step_work(widths[0]) + around
    if ran.computed is None:
        blocks = (rows * step_work(widths)).sum()
    else:
        blocks = computed_work(config, ran.computed).to(dense) + each_step * rows.sum()
    return Work(blocks + around, dense, (adaptive * valid).sum(), (full * valid).sum())


def computed_work(config: AlbertShape | AlbertConfig, computed: ComputedSteps) -> Tensor:
    """Multiply-accumulates of a shared layer that computed some of its units only, float64, ().

    A query and its feed-forward cost 2 H^2 + 2 H F, a key and its value 2 H^2, a pair 2 H.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys, pairs = (counts.double().sum() for counts in computed)
    return queries * (2 * hidden**2 + 2 * hidden * inner) + keys * 2 * hidden**2 + pairs * 2 * hidden
