"""Tokens with known difficulty and labels, for tests of depth by difficulty."""

from __future__ import annotations

from typing import Any

import torch

from adadepth.halting.trace import DepthTrace
from adadepth.metrics.depth_statistics import HaltingStatistics
from adadepth.metrics.scoring import compute_rightness, token_losses
from adadepth.metrics.unit_classes import SequenceClasses

DEPTH, DIFFICULTIES, LABELS = 6, 5, ("no", "yes", "maybe")


def make_batches(count: int = 3) -> list[dict[str, Any]]:
    """Return tokens of which some have no label, others no difficulty, and some are padding."""
    generator = torch.Generator().manual_seed(0)
    inputs = []
    for _ in range(count):
        difficulty = torch.randint(-1, DIFFICULTIES, (7, 9), generator=generator)
        noise = torch.randint(0, 3, (7, 9), generator=generator)
        valid = torch.arange(9) < torch.randint(4, 10, (7, 1), generator=generator)
        updates = (difficulty.clamp(min=0) // 2 + 1 + noise).clamp(max=DEPTH) * valid
        labels = torch.randint(-1, 3, (7, 9), generator=generator).masked_fill(~valid, -100)
        logits = torch.randn(7, 9, 3, generator=generator)
        inputs.append({
            "trace": DepthTrace("token", updates.float(), valid, DEPTH), "difficulty": difficulty, "labels": labels,
            "logits": logits,
        })  # fmt: skip
    return inputs


def summarise_batches() -> dict[str, Any]:
    """Return the statistics of the batches."""
    classes = SequenceClasses(LABELS, (6,), (1, 3), DIFFICULTIES, has_unlabelled=True)
    statistics = HaltingStatistics(DEPTH, classes.names, "cpu", classes.difficulties)
    for batch in make_batches():
        trace, logits, labels = batch["trace"], batch["logits"], batch["labels"]
        masks = classes.masks(logits, labels, trace.valid.sum(dim=1), batch["difficulty"], valid=trace.valid)
        statistics.update(
            trace,
            masks,
            token_losses(logits, labels),
            right=compute_rightness(logits, labels),
            difficulty=batch["difficulty"],
        )
    return statistics.summary()
