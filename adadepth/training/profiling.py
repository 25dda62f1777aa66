"""Profiling (`trainer.profiler`), evaluation throughput, and speed of ragged against dense execution."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import profile, schedule
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.data.batches import count_tokens
from adadepth.runtime.console import say
from adadepth.runtime.devices import move_to_float64_device, select_float64_device
from adadepth.runtime.distributed import all_reduce_sum
from adadepth.runtime.timing import compare_rounds, synchronize, time_rounds

TRACE = "trace.json.gz"  # in the folder of a run, for ui.perfetto.dev
_UNTRACED, _TRACED = 2, 3  # the first steps allocate memory and choose kernels; a trace of a few steps is large


@contextmanager
def profile_training(trainer: Trainer, directory: Path) -> Iterator[None]:
    """Profile optimiser steps 3 to 5 within the `with` block, on the CPU and on the accelerator.

    Args:
        trainer: Trainer that is run within the context.
        directory: Folder to which the trace is written.
    """
    path = directory / TRACE
    path.unlink(missing_ok=True)  # from an earlier part of the run
    when = schedule(wait=_UNTRACED - 1, warmup=1, active=_TRACED, repeat=1)
    with profile(schedule=when, on_trace_ready=lambda done: done.export_chrome_trace(str(path))) as tracing:
        steps = _ProfilerStepCallback(tracing)
        trainer.add_callback(steps)
        try:
            yield
        finally:
            trainer.remove_callback(steps)
    result = (
        f"{path} (open it at ui.perfetto.dev)"
        if path.is_file()
        else f"none, because profiling begins after {_UNTRACED} optimiser steps"
    )
    say(f"trace: {result}")


class _ProfilerStepCallback(TrainerCallback):
    """Callback that advances torch's profiler."""

    def __init__(self, tracing: profile) -> None:
        self._tracing = tracing

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance torch's profiler by one step."""
        self._tracing.step()


_REPEATS, _MOST_BATCHES = 6, 16

ForwardPass = tuple[dict[str, Tensor], Any]


class Stopwatch:
    """Stopwatch of evaluations, which counts tokens without padding, and times data loading and forward passes.

    Args:
        device: Device of the model; reading the watch synchronises an accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        sums_on = select_float64_device(device)
        self._sums = torch.zeros(3, dtype=torch.float64, device=sums_on)  # tokens, seconds, processes
        self._sums[2] = 1

    def time(self, passes: Iterable[ForwardPass]) -> Iterator[ForwardPass]:
        """Yield forward passes unchanged, and time them without the work that the caller does in between."""
        begun = self._read_clock()
        for batch, outputs in passes:
            self._sums[1] += self._read_clock() - begun
            self._sums[0] += count_tokens(batch).to(self._sums.device)
            yield batch, outputs
            begun = self._read_clock()
        self._sums[1] += self._read_clock() - begun

    def _read_clock(self) -> float:
        synchronize(self.device)
        return time.perf_counter()

    def tokens_per_second(self) -> float:
        """Return the evaluation throughput of all processes. Every process must call it once."""
        all_reduce_sum([self._sums])
        tokens, seconds, processes = self._sums.tolist()
        return tokens * processes / seconds


class ExecutionSpeed(NamedTuple):
    """Speed-up of ragged over dense execution (halted tokens are skipped or not), as measured.

    Attributes:
        speedup: Measured speed-up, the median over rounds.
        speedup_range: Least and greatest speed-up of a round.
        allowed: Speed-up that the multiply-accumulates predict, if time were proportional to them.
        sequences: Number of sequences of the largest batch.
    """

    speedup: float
    speedup_range: list[float]
    allowed: float
    sequences: int


def compare_executions(
    trainer: Any, *, seconds: float, most_seconds: float, training: bool = False
) -> ExecutionSpeed | None:
    """Measure the speed-up of ragged over dense execution, over alternating rounds.

    At least one batch is timed; the time determines how many more.

    Args:
        trainer: Trainer of the model. The model is unchanged afterwards, except that its gradients are dropped.
        seconds: Time of the whole comparison in seconds.
        most_seconds: Time above which nothing is measured, if a single batch needs it.
        training: Whether to time forward and backward passes on training data instead of evaluation passes.

    Returns:
        Comparison, or None if the model has only one execution or the comparison would take too long.
    """
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    executions = model.executions
    if len(executions) < 2 or trainer.args.torch_compile or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return None
    loader = iter(trainer.get_train_dataloader() if training else trainer.get_eval_dataloader())
    batches: list[dict[str, Tensor]] = []
    execution_before, was_training = model.config.execution, model.training
    traces: dict[str, list[Any]] = {}

    def run(execution: str) -> None:
        model.config.execution = execution
        traces[execution] = []
        for batch in batches:
            with torch.set_grad_enabled(training), trainer.autocast_smart_context_manager():
                outputs = model(**batch)
            if training:
                outputs.loss.backward()
                model.zero_grad(set_to_none=True)
            traces[execution].append(outputs.trace)

    def load_batches(count: int) -> None:
        batches.extend(trainer.model_inputs(trainer.prepare_batch(batch)) for batch in islice(loader, count))

    try:
        model.train(training)
        load_batches(1)
        once = time_rounds({"once": partial(run, executions[0])}, 1, 1, trainer.args.device)["once"][0]
        per_batch = once * len(executions) * (_REPEATS + 1)
        if per_batch > most_seconds:
            return None
        load_batches(max(0, min(_MOST_BATCHES, int(seconds / per_batch)) - 1))
        calls = {execution: partial(run, execution) for execution in executions}
        timed = time_rounds(calls, _REPEATS, 1, trainer.args.device)
    finally:
        model.config.execution = execution_before
        model.train(was_training)
    prices = [model.price(move_to_float64_device(trace, trainer.args.device)) for trace in traces["ragged"]]
    speedup, *limits = compare_rounds(timed["dense"], timed["ragged"])
    return ExecutionSpeed(
        speedup=speedup,
        speedup_range=limits,
        allowed=float(sum(price.dense for price in prices) / sum(price.executed for price in prices)),
        sequences=max(len(trace.updates) for trace in traces["ragged"]),
    )
