"""Finding a run's checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

TRAINER_STATE = "trainer_state.json"


def complete_checkpoints(directory: Path) -> list[Path]:
    """The checkpoints in a folder that were written to their end, oldest first.

    The trainer's state is the last file of a checkpoint, so one that a kill interrupted has none that can be read.
    """
    found = sorted(directory.glob("checkpoint-*"), key=checkpoint_step)
    return [path for path in found if _is_readable(path / TRAINER_STATE)]


def checkpoint_step(checkpoint: Path) -> int:
    """The optimiser step after which a checkpoint was written, from its name `checkpoint-<step>`."""
    return int(checkpoint.name.rpartition("-")[2])


def _is_readable(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True
