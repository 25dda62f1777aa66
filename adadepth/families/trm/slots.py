"""Training in slots: a puzzle keeps its slot of the batch, step after step, until it halts and another takes its place.

    slot b halted before: (y,z)_b <- (y_0,z_0), steps_b <- 0, row_b <- row b of the new batch; else that row is left out
    halted_b = (steps_b >= N or q_b > 0) and steps_b >= m_b

m_b is 0, or with probability `exploration` uniform in 2..N, drawn again at every step (the published code). So batches
are delivered one for every step, and an epoch counts what is delivered. Shape legend: B slots.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adadepth.families.trm.configuration import TrmConfig

# answer, reasoning (B, S, D); steps int64, halted bool, puzzle_kinds (B,); input_ids, labels (B, L). Empty at first.
Carry = dict[str, Tensor]


def refilled(carry: Carry, model: Any, input_ids: Tensor, labels: Tensor, puzzle_kinds: Tensor) -> Carry:
    """What the slots hold at the beginning of a step: new puzzles where the old ones have halted."""
    answer, reasoning = model.start(len(input_ids))
    fresh = {
        "answer": answer, "reasoning": reasoning, "steps": puzzle_kinds.new_zeros(len(input_ids), dtype=torch.int64),
        "input_ids": input_ids, "labels": labels, "puzzle_kinds": puzzle_kinds,
    }  # fmt: skip
    if not carry:
        return fresh
    halted = carry["halted"]
    return {name: torch.where(_like(halted, new), new, carry[name]) for name, new in fresh.items()}


def slots_halt(config: TrmConfig, steps: Tensor, q: Tensor, draws: Tensor | None) -> Tensor:
    """Which slots halt after a step, boolean (B,).

    Args:
        config: With `num_steps` and `exploration`.
        steps: Of the puzzles in the slots, this one included, int64 (B,).
        q: Their logits of being right, (B,).
        draws: Two uniform numbers a slot, (B, 2); None: nobody explores.
    """
    halted = (steps >= config.num_steps) | (q > 0)
    if draws is None or config.num_steps < 2:
        return halted
    least = 2 + (draws[:, 1] * (config.num_steps - 1)).long()
    return halted & ((steps >= least) | (draws[:, 0] >= config.exploration))


def _like(rows: Tensor, values: Tensor) -> Tensor:
    return rows.view(-1, *[1] * (values.dim() - 1))
