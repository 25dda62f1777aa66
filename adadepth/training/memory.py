"""What a recurrent model remembers of its streams from one batch to the next, as part of a run's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from adadepth.training.extension import Batch, Extension


class RecurrentMemory(Extension):
    """The memory of every stream and row group of this process.

    Batches of different streams, and the micro-batches of one update, hold different rows of text: each has a memory of
    its own, and a batch that begins a stream has none.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def forward_options(self, batch: Batch) -> dict[str, Any]:
        """What the model remembers of a batch's rows; None where they begin."""
        return {"memory": None if batch["is_start"] else self._kept.get(_key(batch))}

    def after_forward(self, batch: Batch, outputs: Any) -> None:
        """Remember a batch's rows until their next batch."""
        self._kept[_key(batch)] = outputs.memory

    def save(self, checkpoint: Path, process: int) -> None:
        """Write this process's memories."""
        save_file({key: memory.contiguous() for key, memory in self._kept.items()}, checkpoint / _file(process))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Read them back."""
        read = load_file(checkpoint / _file(process))
        self._kept = {key: memory.to(device) for key, memory in read.items()}


def _key(batch: Batch) -> str:
    return f"{batch['stream']}/{batch['slot']}"


def _file(process: int) -> str:
    return f"memory_{process}.safetensors"
