"""Labelled tokens as units of an evaluation: each is an example of `StepRecords`, numbered by sequence and position.

Shape legend: B batch, T tokens, K units that the model read, U of them that have a label, N steps, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

# A unit's index is that of its sequence times this, plus its position: longer sequences do not exist.
POSITIONS = 2**20


def token_columns(batch: Mapping[str, Tensor], outputs: Any) -> dict[str, Tensor]:
    """What is kept of every labelled token of a batch.

    Args:
        batch: `index` (B,), `attention_mask` and `labels` (B, T), and maybe `difficulty`, (B,) or (B, T).
        outputs: `unit_slots` (K,), `step_logits` (K, N, C), `halting_logits` (K, N) or None, `exit_steps` (K,);
            `logits` (B, T, C).

    Returns:
        The columns of `StepRecords`, each (U, ...): the length is that of the unit's sequence, the depth its updates
        until its exit.
    """
    width = batch["labels"].shape[1]
    labelled = (batch["labels"].flatten()[outputs.unit_slots] >= 0).nonzero().squeeze(1)
    slots = outputs.unit_slots[labelled]
    rows, positions = slots // width, slots % width
    exits = outputs.exit_steps[labelled]
    columns = {
        "index": batch["index"][rows] * POSITIONS + positions,
        "lengths": batch["attention_mask"].sum(dim=1).long()[rows],
        "logits": outputs.logits[rows, positions].float(),
        "depth": exits.float(),
        "labels": batch["labels"][rows, positions],
        "step_logits": outputs.step_logits[labelled].float(),
        "exit_steps": exits,
    }
    if (ran := outputs.trace.ran) is not None:
        columns["ran"] = nn.functional.pad(ran.flatten(0, 1)[slots], (0, outputs.trace.max_depth - ran.shape[-1]))
        columns["depth"] = (columns["ran"] & _until(exits, outputs.trace.max_depth)).sum(dim=1).float()
    if outputs.halting_logits is not None:
        columns["halting_logits"] = outputs.halting_logits[labelled].float()
    if (difficulty := batch.get("difficulty")) is not None:
        columns["difficulty"] = difficulty[rows] if difficulty.dim() == 1 else difficulty[rows, positions]
    return columns


def _until(exits: Tensor, steps: int) -> Tensor:
    """Whether each unit has not left before each step, (U, N)."""
    return torch.arange(1, steps + 1, device=exits.device) <= exits.unsqueeze(1)


def sequences_of(index: Tensor) -> Tensor:
    """The number of each unit's sequence, (M,)."""
    return index // POSITIONS
