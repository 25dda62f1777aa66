"""Support for tests of depth correction: a session under a budget, and the mean depth of its model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HELD = ("model.act_penalty=0", "model.num_hidden_layers=6", "model.cap_remainder=forced")


def build_session(trainer: Any, *, small: bool = False) -> Any:
    record: dict[str, Any] = {}
    run = SimpleNamespace(record=record, update=lambda **fields: record.update(fields))
    return SimpleNamespace(trainer=trainer, config=SimpleNamespace(small=small), run=run)


def compute_mean_depth(trainer: Any) -> float:
    """Return the mean number of updates of a real token of the evaluation examples, computed one example at a time."""
    examples = next(iter(trainer.evaluation_sets.values()))
    total = units = 0.0
    model = trainer.model.eval()
    for index in range(len(examples)):
        batch = trainer.data_collator([examples[index]])
        with torch.no_grad():
            trace = model(**{name: batch[name] for name in INPUTS}).trace
        total += float(trace.updates.sum())
        units += float(trace.valid.sum())
    return total / units
