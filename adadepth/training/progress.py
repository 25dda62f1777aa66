"""Training that has left every good range: losses or weights that are no numbers, and losses that explode.

A loss has exploded when `UPDATES` updates in a row had one above `FACTOR` times that of the run's first update, which
the untrained model made, or above `FACTOR` nats where that was below 1. A model that knows nothing stays near its first
loss, and a warm-up's peaks pass. Only the model's own loss counts: the price of a budget may grow as it likes.
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
from adadepth.runs.checkpoints import last_good

FACTOR, UPDATES = 10.0, 10


class DivergedError(UserError):
    """Training, or what came of it, is not finite or has exploded."""


class Explosion:
    """Counts, on the device, for how many updates in a row the loss has been far above the first one."""

    def __init__(self) -> None:
        self._first: Tensor | None = None
        self._above: Tensor | None = None
        self._update: Tensor | None = None

    def add(self, loss: Tensor) -> None:
        """Add the loss of a micro-batch, which is its share of the update's."""
        loss = loss.detach().float()
        self._update = loss if self._update is None else self._update + loss

    def end_step(self) -> None:
        """Judge the update whose micro-batches were added; nothing where there were none."""
        if self._update is None:
            return
        loss, self._update = self._update, None
        if self._first is None or self._above is None:
            self._first, self._above = loss, torch.zeros_like(loss)
        limit = FACTOR * self._first.clamp(min=1.0)
        self._above = torch.where(loss > limit, self._above + 1, torch.zeros_like(loss))

    def updates(self, world_size: int = 1) -> int:
        """How many updates in a row, up to the last one, were far above the first, on any process."""
        self.end_step()
        if self._above is None:
            return 0
        if world_size > 1:
            dist.all_reduce(self._above, op=dist.ReduceOp.MAX)
        return int(self._above)

    def state(self) -> list[float] | None:
        """The first loss and the count, for a checkpoint."""
        return None if self._first is None or self._above is None else [float(self._first), float(self._above)]

    def load(self, state: list[float] | None, device: torch.device) -> None:
        """Go on from a checkpoint."""
        if state is not None:
            self._first, self._above = torch.tensor(state, dtype=torch.float32, device=device).unbind()


def refuse(problem: str | None, checkpoints: Path) -> None:
    """Stop where there is a problem.

    Raises:
        DivergedError: Naming it, and the last good one of the checkpoints.
    """
    if problem is not None:
        raise DivergedError(
            f"{problem}; {last_good(checkpoints)}. A lower trainer.learning_rate, a longer warm-up or "
            "trainer.precision=fp32 may help, in a new run: resumed, this one would diverge again"
        )


def infinite_loss(losses: Mapping[str, float]) -> str | None:
    """Which of an evaluation's losses is no number, and what it is, for a sentence; None: all are."""
    return next((f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value)), None)


def first_not_finite(model: nn.Module, world_size: int = 1) -> str | None:
    """The name of a parameter that holds an infinite number or NaN, on any process; None: there is none."""
    names, flags = [], []
    for name, parameter in model.named_parameters():
        own: Any = parameter.detach()
        own = own.to_local() if hasattr(own, "to_local") else own  # a shard, which may be empty
        names.append(name)
        flags.append(own.isfinite().all())
    if not flags:
        return None
    finite = torch.stack([flag.to(flags[0].device) for flag in flags]).float()
    if world_size > 1:
        dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    return next((name for name, is_finite in zip(names, finite.tolist(), strict=True) if not is_finite), None)


class TrainingProgress:
    """Sums on the device, which nobody waits for until they are logged."""

    def __init__(self, args: TrainingArguments) -> None:
        self._args = args
        self._parts: dict[str, Tensor] = {}
        self._first_bad_step: dict[str, Tensor] = {}
        self._explosion = Explosion()
        self.begin()

    def begin(self) -> None:
        """Start the clock, and count updates and tokens from nothing."""
        self._clock = time.perf_counter()
        self._updates = 0
        self._tokens: Tensor | int = 0

    def pause(self, seconds: float) -> None:
        """Do not count time that was spent on something else."""
        self._clock += seconds

    def begin_step(self, tokens: Tensor) -> None:
        """Count an update, and the tokens that all processes read in it."""
        self._explosion.end_step()
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
