"""Count of the optimiser steps that the gradient scaler of fp16 skips."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.runtime.console import say
from adadepth.runtime.files import write_atomic
from adadepth.runtime.json_files import Count, read_json
from adadepth.training.extension import Extension

_FILE = "skipped_steps.json"


class _Stored(TypedDict):
    skipped: Count


class SkippedSteps(Extension, TrainerCallback):
    """Extension that counts the optimiser steps that change no weight because a gradient overflows in fp16.

    The gradient scaler starts with a large scale and halves it after every overflow, so most runs skip their first
    steps.
    """

    described_logs = ("skipped_steps",)

    def __init__(self) -> None:
        self._skipped = 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count the step if the gradient scaler skipped it."""
        self._skipped += kwargs["optimizer"].step_was_skipped

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Print the number of skipped steps."""
        if self._skipped and state.is_world_process_zero:
            share = f"{self._skipped:,} of {state.global_step:,} steps"
            say(f"fp16: gradients overflowed in {share}, which changed no weight", logging.WARNING)

    def logs(self) -> dict[str, float]:
        """Return the number of steps that have been skipped since the start of training."""
        return {"skipped_steps": float(self._skipped)}

    def format_logs(self, logs: Mapping[str, float]) -> Iterator[str]:
        """Yield the number of skipped steps, if there are any."""
        if skipped := int(logs.get("skipped_steps", 0)):
            yield f"{skipped:,} steps skipped"

    def save(self, checkpoint: Path, process: int) -> None:
        """Write the number of skipped steps to a checkpoint; it is the same in all processes."""
        if process == 0:
            write_atomic(checkpoint / _FILE, json.dumps({"skipped": self._skipped}))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Restore the number of skipped steps; a checkpoint of an older version does not contain it."""
        if (path := checkpoint / _FILE).is_file():
            self._skipped = read_json(path, _Stored)["skipped"]
