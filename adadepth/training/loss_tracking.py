"""Running sums of losses for the log, training throughput, and detection of diverging losses or weights.

A loss has exploded if it was above `FACTOR` times the loss of the first optimiser step for `UPDATES` steps in a row. If
the first loss was below 1, the limit is `FACTOR` nats. An untrained model stays near its first loss, and peaks of a
warm-up are short. Only the loss of the model counts, because the penalty of a budget may grow without limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import TrainingArguments

from adadepth.errors import UserError
from adadepth.runs.checkpoints import describe_last_checkpoint

FACTOR, UPDATES = 10.0, 10


class DivergedError(UserError):
    """Training has diverged: losses or weights are not finite, or losses have exploded."""


class ExplosionDetector:
    """Detector of an exploding loss, which counts consecutive optimiser steps far above the first loss."""

    def __init__(self) -> None:
        self._first: Tensor | None = None
        self._above: Tensor | None = None
        self._update: Tensor | None = None

    def add(self, loss: Tensor) -> None:
        """Add the loss of a micro-batch to the loss of the current optimiser step."""
        loss = loss.detach().float()
        self._update = loss if self._update is None else self._update + loss

    def end_step(self) -> None:
        """Compare the loss of the current optimiser step with the first one, if any micro-batch was added."""
        if self._update is None:
            return
        loss, self._update = self._update, None
        if self._first is None or self._above is None:
            self._first, self._above = loss, torch.zeros_like(loss)
        limit = FACTOR * self._first.clamp(min=1.0)
        self._above = torch.where(loss > limit, self._above + 1, torch.zeros_like(loss))

    def updates(self, world_size: int = 1) -> int:
        """Return how many consecutive optimiser steps up to now had an exploded loss, on any process."""
        self.end_step()
        if self._above is None:
            return 0
        if world_size > 1:
            dist.all_reduce(self._above, op=dist.ReduceOp.MAX)
        return int(self._above)

    def state(self) -> list[float] | None:
        """Return the first loss and the count of exploded steps, for a checkpoint."""
        return None if self._first is None or self._above is None else [float(self._first), float(self._above)]

    def load(self, state: list[float] | None, device: torch.device) -> None:
        """Restore the first loss and the count of exploded steps from a checkpoint."""
        if state is not None:
            self._first, self._above = torch.tensor(state, dtype=torch.float32, device=device).unbind()


def raise_if_diverged(problem: str | None, checkpoints: Path) -> None:
    """Raise a `DivergedError` with the text of the problem, if there is one.

    Raises:
        DivergedError: If there is a problem; the message names it and the last good checkpoint.
    """
    if problem is not None:
        raise DivergedError(
            f"{problem}; {describe_last_checkpoint(checkpoints)}. A lower trainer.learning_rate, a longer warm-up "
            "or trainer.precision=fp32 may help in a new run: resuming this run would diverge again"
        )


def describe_nonfinite_loss(losses: Mapping[str, float]) -> str | None:
    """Describe the first loss of an evaluation that is not finite, or return None if all are finite."""
    return next((f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value)), None)


def find_nonfinite_parameter(model: nn.Module, world_size: int = 1) -> str | None:
    """Return the name of the first parameter that has an infinite value or NaN on any process, or None."""
    names, flags = [], []
    for name, parameter in model.named_parameters():
        local: Any = parameter.detach()
        local = local.to_local() if hasattr(local, "to_local") else local  # a shard, which may be empty
        names.append(name)
        flags.append(local.isfinite().all())
    if not flags:
        return None
    finite = torch.stack([flag.to(flags[0].device) for flag in flags]).float()
    if world_size > 1:
        dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    return next((name for name, is_finite in zip(names, finite.tolist(), strict=True) if not is_finite), None)


class TrainingProgress:
    """Losses and token counts summed since the last log entry, kept on the device until then."""

    def __init__(self, args: TrainingArguments) -> None:
        self._args = args
        self._parts: dict[str, Tensor] = {}
        self._first_bad_step: dict[str, Tensor] = {}
        self._explosion = ExplosionDetector()
        self.begin()

    def begin(self) -> None:
        """Start the throughput clock, and reset the counts of optimiser steps and tokens."""
        self._clock = time.perf_counter()
        self._updates = 0
        self._tokens: Tensor | int = 0

    def pause(self, seconds: float) -> None:
        """Exclude seconds that were not spent on training from the throughput."""
        self._clock += seconds

    def begin_step(self, tokens: Tensor) -> None:
        """Count an optimiser step and the tokens that all processes read in it."""
        self._explosion.end_step()
        self._updates += 1
        self._tokens += tokens

    def record_loss(self, loss: Tensor) -> None:
        """Record the model's own loss on a micro-batch, without the loss terms of extensions."""
        self._explosion.add(loss)

    def record(self, name: str, part: Tensor, step: int) -> None:
        """Record a loss term of a micro-batch, and the first step at which it was not finite."""
        zero, never = torch.zeros_like(part), torch.full_like(part, math.inf)
        self._parts[name] = self._parts.get(name, zero) + part
        bad_step = torch.where(part.isfinite(), never, float(step))
        self._first_bad_step[name] = torch.minimum(self._first_bad_step.get(name, never), bad_step)

    def problem(self) -> str | None:
        """Return what is wrong with the losses since the last call, on any process, or None."""
        return self._describe_nonfinite() or self._describe_explosion()

    def is_exploding(self) -> bool:
        """Return whether the last loss was far above the first one, so that no checkpoint should be saved."""
        return self._explosion.updates(self._args.world_size) > 0

    def _describe_explosion(self) -> str | None:
        updates = self._explosion.updates(self._args.world_size)
        if updates < UPDATES:
            return None
        return f"the loss has been more than ten times the first loss for {updates} optimiser steps"

    def _describe_nonfinite(self) -> str | None:
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
        """Return the mean loss terms and the throughput since the last log entry, and reset both."""
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
        """Return the sums since the last log entry for a checkpoint.

        JSON stores a float exactly.
        """
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
        """Restore the sums since the last log entry from a checkpoint."""
        device = self._args.device
        self._updates = state["updates"]
        self._tokens = torch.tensor(state["tokens"], device=device)
        self._clock = time.perf_counter() - state["seconds"]
        self._parts = {
            name: torch.tensor(value, dtype=getattr(torch, dtype), device=device)
            for name, (value, dtype) in state["parts"].items()
        }
        self._explosion.load(state["explosion"], device)
