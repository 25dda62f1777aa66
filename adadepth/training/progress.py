"""What happened since the last training log: loss parts, whether they were finite, tokens, time."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainingArguments

from adadepth.training.divergence import UPDATES, Explosion


class TrainingProgress:
    """Sums on the device, which nobody waits for until they are logged."""

    def __init__(self, args: TrainingArguments) -> None:
        self._args = args
        self._parts: dict[str, Tensor] = {}
        self._first_bad_step: dict[str, Tensor] = {}
        self._explosion = Explosion()
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
        self._explosion.end_update()
        self._updates += 1
        self._tokens += tokens

    def record_loss(self, loss: Tensor) -> None:
        """Add the model's own loss of a micro-batch, without what extensions add to it."""
        self._explosion.add(loss)

    def record(self, name: str, part: Tensor, step: int) -> None:
        """Add a loss part of a micro-batch, and remember the first step at which it was not finite."""
        zero, never = torch.zeros_like(part), torch.full_like(part, math.inf)
        self._parts[name] = self._parts.get(name, zero) + part
        bad_step = torch.where(part.isfinite(), never, float(step))
        self._first_bad_step[name] = torch.minimum(self._first_bad_step.get(name, never), bad_step)

    def problem(self) -> str | None:
        """What is wrong with the losses since the last call, on any process; None: nothing."""
        return self._not_finite() or self._exploded()

    def is_exploding(self) -> bool:
        """Whether the loss of the last update was far above the first: it may pass, but is no state to keep."""
        return self._explosion.updates(self._args.world_size) > 0

    def _exploded(self) -> str | None:
        updates = self._explosion.updates(self._args.world_size)
        if updates < UPDATES:
            return None
        return f"the loss has been more than ten times the first one for {updates} updates"

    def _not_finite(self) -> str | None:
        if not self._first_bad_step:
            return None
        steps = torch.stack(list(self._first_bad_step.values()))
        if self._args.world_size > 1:
            dist.all_reduce(steps, op=dist.ReduceOp.MIN)
        names, self._first_bad_step = list(self._first_bad_step), {}
        return next(
            (
                f"the loss part {name!r} is not finite at step {int(step)}"
                for name, step in zip(names, steps.tolist(), strict=True)
                if math.isfinite(step)
            ),
            None,
        )

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

    def state(self) -> dict[str, Any]:
        """The sums since the last log as plain values, for a checkpoint; a float's text is exact."""
        return {
            "updates": self._updates,
            "tokens": float(self._tokens),
            "seconds": time.perf_counter() - self._clock,
            "parts": {
                name: [float(part), str(part.dtype).removeprefix("torch.")] for name, part in self._parts.items()
            },
            "explosion": self._explosion.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on with the sums of a checkpoint."""
        device = self._args.device
        self._updates = state["updates"]
        self._tokens = torch.tensor(state["tokens"], device=device)
        self._clock = time.perf_counter() - state["seconds"]
        self._parts = {
            name: torch.tensor(value, dtype=getattr(torch, dtype), device=device)
            for name, (value, dtype) in state["parts"].items()
        }
        self._explosion.load(state["explosion"], device)
