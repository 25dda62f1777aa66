"""Recorded predictions of examples that are right and sure from a step on, and the compute of their exits."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from adadepth.metrics.step_records import StepRecords

N, EXAMPLES = 6, 300


def count_macs(records: StepRecords, steps: Tensor, reads: Collection[str]) -> float:
    return float((steps.double() * (10 + ("logits" in reads)) * records.lengths).sum())


def make_records(sure_when_wrong: float = 0.0) -> StepRecords:
    """Return examples of which example i is right from step d_i on, and sure then; before, it is wrong and unsure."""
    generator = torch.Generator().manual_seed(0)
    needed = torch.randint(1, N + 1, (EXAMPLES,), generator=generator)
    labels = torch.randint(0, 3, (EXAMPLES,), generator=generator)
    knows = torch.arange(1, N + 1) >= needed.unsqueeze(1)
    right, wrong = (torch.nn.functional.one_hot(classes, 3).float() for classes in (labels, (labels + 1) % 3))
    wrong_logits = wrong * (0.1 + sure_when_wrong)
    logits = torch.where(knows.unsqueeze(-1), 8 * right.unsqueeze(1), wrong_logits.unsqueeze(1))
    index = torch.arange(EXAMPLES)
    return StepRecords(
        index, torch.full((EXAMPLES,), 4), logits[:, -1], needed.float(), N, labels=labels, step_logits=logits
    )
