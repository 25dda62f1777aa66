"""What happened since the last training log: loss parts, whether they were finite, tokens, time."""

from __future__ import annotations

import math
import time

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainingArguments

from adadepth.errors import UserError


class NonFiniteLoss(UserError):
    """A part of the loss became infinite or NaN."""


class TrainingProgress:
    """Sums on the device, which nobody waits for until they are logged."""

    def __init__(self, args: TrainingArguments) -> None:
        self._args = args
        self._parts: dict[str, Tensor] = {}
        self._first_bad_step: dict[str, Tensor] = {}
        self.begin()

    def begin(self) -> None:
        """Start the clock."""
        self._clock = time.perf_counter()
        self._updates = 0
        self._tokens: Tensor | int = 0

    def pause(self, seconds: float) -> None:
        """Do not count time that was spent on something else."""
        self._clock += seconds

    def begin_update(self, tokens: Tensor) -> None:
        """Count an update, and the tokens that all processes read in it."""
        self._updates += 1
        self._tokens += tokens

    def record(self, name: str, part: Tensor, step: int) -> None:
        """Add a loss part of a micro-batch, and remember the first step at which it was not finite."""
        zero, never = torch.zeros_like(part), torch.full_like(part, math.inf)
        self._parts[name] = self._parts.get(name, zero) + part
        bad_step = torch.where(part.isfinite(), never, float(step))
        self._first_bad_step[name] = torch.minimum(self._first_bad_step.get(name, never), bad_step)

    def check_finite(self) -> None:
        """Raise if any loss part since the last check was not finite, on any process.

        Raises:
            NonFiniteLoss: Naming the part and the step.
        """
        if not self._first_bad_step:
            return
        steps = torch.stack(list(self._first_bad_step.values()))
        if self._args.world_size > 1:
            dist.all_reduce(steps, op=dist.ReduceOp.MIN)
        for name, step in zip(self._first_bad_step, steps.tolist(), strict=True):
            if math.isfinite(step):
                raise NonFiniteLoss(
                    f"the loss part {name!r} is not finite at step {int(step)}; the last good checkpoint is kept. "
                    "A lower trainer.learning_rate, a longer warm-up or trainer.precision=fp32 may help"
                )
        self._first_bad_step.clear()

    def drain(self) -> dict[str, float]:
        """Means of the loss parts over updates, and the speed, since the last log; then all begins anew."""
        seconds = time.perf_counter() - self._clock
        totals = torch.stack(list(self._parts.values()))
        if self._args.world_size > 1:
            dist.all_reduce(totals)
            totals /= self._args.world_size
        logs = {f"{name}_loss": total / self._updates for name, total in zip(self._parts, totals.tolist(), strict=True)}
        logs["tokens_per_second"] = float(self._tokens) / seconds
        if self._args.device.type == "cuda":
            logs["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        self._parts = {}
        self.begin()
        return logs
