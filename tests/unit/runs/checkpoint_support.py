"""Complete checkpoints with a real trainer state and made-up other files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerState

from adadepth.runs.checkpoints import TRAINER_STATE, begin_checkpoint, seal_checkpoint

PARTS = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")


def write_checkpoint(folder: Path, step: int, **state: Any) -> Path:
    """Write a complete checkpoint of an optimiser step, with other fields of the trainer state."""
    checkpoint = folder / f"checkpoint-{step}"
    begin_checkpoint(checkpoint)
    for name in PARTS:
        (checkpoint / name).write_text(f"{name} of {step}")
    callbacks = {"TrainerControl": {"args": {}, "attributes": {}}}
    fields = {"epoch": 1.0, "global_step": step, "max_steps": 20, "stateful_callbacks": callbacks} | state
    TrainerState(**fields).save_to_json(str(checkpoint / TRAINER_STATE))
    seal_checkpoint(checkpoint)
    return checkpoint
