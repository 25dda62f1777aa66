"""The work of an ALBERT whose tokens have depths of their own."""

from __future__ import annotations

import torch

from adadepth.families.albert_act.configuration import AlbertActConfig
from adadepth.families.shared.albert.pricing import block_work
from adadepth.halting.trace import DepthTrace, Work


def price_tokens(config: AlbertActConfig, trace: DepthTrace) -> Work:
    """Multiply-accumulates of the encoder for one traced batch; heads and embeddings' lookups are not counted.

    Per update of a token among S keys: 4 H^2 for the projections, 2 S H for attention, 2 H F, and H to halt. The
    adaptive count refreshes a token's keys and values once more after its last update if others still run.

    Args:
        config: Widths E, H, F.
        trace: With `execution`. With its `tokens`, the units are some of so many tokens of each row. Without its
            `computed`, every row is taken to have run in every iteration.
    """
    ran = trace.executed
    hidden, inner = config.hidden_size, config.intermediate_size
    updates, valid = trace.updates.double(), trace.valid.double()
    tokens = valid.sum(dim=1, keepdim=True) if ran.tokens is None else ran.tokens.double().unsqueeze(1)
    deepest = updates.amax(dim=1, keepdim=True)
    query_side = 2 * hidden**2 + 2 * tokens * hidden + 2 * hidden * inner + hidden
    key_side = 2 * hidden**2
    entry = config.embedding_size * hidden

    adaptive = updates * query_side + torch.minimum(updates + 1, deepest) * key_side + entry
    full = trace.max_depth * (query_side + key_side) + entry
    rows, length = updates.shape
    update = 4 * hidden**2 + 2 * length * hidden + 2 * hidden * inner + hidden
    dense = updates.new_tensor(rows * length * (ran.steps * update + entry))
    executed = dense
    if ran.computed is not None:
        halting = hidden * ran.computed.queries.double().sum()
        executed = (block_work(config, ran.computed) + halting + rows * length * entry).to(dense)
    return Work(executed, dense, (adaptive * valid).sum(), (full * valid).sum())
