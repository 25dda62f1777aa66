"""A regime of training: brackets nested as deep as has been reached count more, and the depth grows with success."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.config import ExperimentConfig, Mode
from adadepth.runtime.distributed import all_reduce_sum
from adadepth.runtime.files import write_atomic
from adadepth.training.extension import Batch, Extension

REACHED = "brackets.json"  # in the folder of the run: [update, depth] of every depth that was reached


def deepening(config: ExperimentConfig) -> Extension | None:
    """Return the extension of a training; None for an evaluation or if `dataset.stress` is 0."""
    dataset: Any = config.dataset
    if config.mode is not Mode.train or not dataset.stress:
        return None
    return Deepening(dataset.stress, dataset.advance_at, dataset.deepest)


class Deepening(Extension, TrainerCallback):
    """Adds the loss of the brackets nested `depth` deep, and goes one deeper when enough of an update's are right.

    Args:
        stress: Weight of that loss.
        advance_at: Share of these brackets that must be right.
        deepest: Depth at which it stays.
    """

    described_logs = ("stressed_depth",)

    def __init__(self, stress: float, advance_at: float, deepest: int) -> None:
        self._stress, self._advance_at, self._deepest = stress, advance_at, deepest
        self.depth, self._reached = 1, [[0, 1]]
        self._labels: Tensor | None = None
        self._sums = torch.zeros(2, dtype=torch.float64)  # of an update: right ones, all of them

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """How many brackets of a micro-batch are nested so deep."""
        return {"deep": (batch["labels"] == self.depth).sum()}

    def after_forward(self, batch: Batch, outputs: Any) -> None:
        """Keep the labels, and count what is right."""
        self._labels = labels = batch["labels"]
        is_deep = labels == self.depth
        right = (outputs.logits.detach().argmax(dim=-1) == labels) & is_deep
        self._sums = self._sums.to(labels.device) + torch.stack([right.sum(), is_deep.sum()])

    def loss_parts(self, outputs: Any, counts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their mean loss over the update, weighted."""
        assert self._labels is not None
        wanted = self._labels.masked_fill(self._labels != self.depth, -100)
        summed = functional.cross_entropy(outputs.logits.flatten(0, 1), wanted.flatten(), reduction="sum")
        return {"deep": self._stress * summed / counts["deep"].clamp(min=1)}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Go one deeper, in all processes or in none."""
        all_reduce_sum([self._sums])
        right, seen = self._sums.tolist()
        self._sums = torch.zeros_like(self._sums)
        if self.depth < self._deepest and seen and right / seen >= self._advance_at:
            self.depth += 1
            self._reached.append([state.global_step, self.depth])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write what the report tells."""
        if state.is_world_process_zero:
            write_atomic(Path(str(args.output_dir)).parent / REACHED, json.dumps({"reached": self._reached}))

    def logs(self) -> dict[str, float]:
        """Return the nesting depth that the additional loss is about."""
        return {"stressed_depth": float(self.depth)}

    def format_logs(self, logs: Mapping[str, float]) -> Iterator[str]:
        """Yield the same depth for the console."""
        if "stressed_depth" in logs:
            yield f"stress on depth {logs['stressed_depth']:.0f}"

    def save(self, checkpoint: Path, process: int) -> None:
        """Write what has been reached, which is the same in all processes."""
        if process == 0:
            write_atomic(checkpoint / REACHED, json.dumps({"reached": self._reached}))

    def load(self, checkpoint: Path, process: int, device: torch.device) -> None:
        """Go on from it."""
        self._reached = json.loads((checkpoint / REACHED).read_text(encoding="utf-8"))["reached"]
        self.depth = self._reached[-1][1]
