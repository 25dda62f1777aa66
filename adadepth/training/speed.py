"""`trainer.profiler=true`: where the time of a few updates goes, as a trace that ui.perfetto.dev opens."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import profile, schedule
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.system.console import say
from adadepth.system.processes import add_over_processes
from adadepth.system.timing import time_interleaved, wait_for

TRACE = "trace.json.gz"  # in a run's folder
_UNTRACED, _TRACED = 2, 3  # the first updates allocate memory and choose kernels; a trace of few is large already


@contextmanager
def profiled(trainer: Trainer, directory: Path) -> Iterator[None]:
    """Trace the third to fifth update that this process makes, on the CPU and on its accelerator.

    Args:
        trainer: What is trained within.
        directory: Where the trace is written.
    """
    path = directory / TRACE
    path.unlink(missing_ok=True)  # of an earlier part of the run
    when = schedule(wait=_UNTRACED - 1, warmup=1, active=_TRACED, repeat=1)
    with profile(schedule=when, on_trace_ready=lambda done: done.export_chrome_trace(str(path))) as tracing:
        steps = _Steps(tracing)
        trainer.add_callback(steps)
        try:
            yield
        finally:
            trainer.remove_callback(steps)
    told = f"{path} (ui.perfetto.dev opens it)" if path.is_file() else f"none, it begins after {_UNTRACED} updates"
    say(f"trace: {told}")


class _Steps(TrainerCallback):
    """Tells the profiler that an update is done."""

    def __init__(self, tracing: profile) -> None:
        self._tracing = tracing

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Tell the profiler that a step has ended."""
        self._tracing.step()


_REPEATS, _MOST_BATCHES = 5, 16

ForwardPass = tuple[dict[str, Tensor], Any]


def count_tokens(batch: Mapping[str, Tensor]) -> Tensor:
    """Real tokens of a batch, int64, (); of vectors, their values."""
    if "targets" in batch:
        return (batch["targets"] >= 0).sum()
    return batch["attention_mask"].sum() if "attention_mask" in batch else torch.tensor(batch["inputs"].numel())


class Stopwatch:
    """Real tokens of an evaluation, and the seconds spent on loading them and on the forward passes.

    Args:
        device: Where the model runs; an accelerator is waited for whenever the watch is read.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # tokens, seconds, processes
        self._sums[2] = 1

    def time(self, passes: Iterable[ForwardPass]) -> Iterator[ForwardPass]:
        """The passes as they are; what the caller does with each of them is not timed."""
        begun = self._now()
        for batch, outputs in passes:
            self._sums[1] += self._now() - begun
            self._sums[0] += count_tokens(batch)
            yield batch, outputs
            begun = self._now()
        self._sums[1] += self._now() - begun

    def _now(self) -> float:
        wait_for(self.device)
        return time.perf_counter()

    def tokens_per_second(self) -> float:
        """Tokens of all processes over the mean of their seconds; every process calls it once."""
        add_over_processes([self._sums])
        tokens, seconds, processes = self._sums.tolist()
        return tokens * processes / seconds


class ExecutionSpeed(NamedTuple):
    """How ragged execution compares with dense execution.

    Attributes:
        speedup: How many times as fast it is, measured.
        allowed: How many times as fast it would be if time were multiply-accumulates.
        sequences: The most of a batch.
    """

    speedup: float
    allowed: float
    sequences: int


def compare_executions(trainer: Any, *, seconds: float, training: bool = False) -> ExecutionSpeed | None:
    """Time both executions of the trainer's model: medians over rounds in which they take turns.

    As many of the first batches are read as the seconds allow, and one at the least.

    Args:
        trainer: With a model that is left as it was; its gradients are dropped.
        seconds: How long all of the timing may take.
        training: Whether it is forward and backward passes of training data, and not passes of evaluation data.

    Returns:
        The comparison; None for a model that has one execution only.
    """
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    executions = model.executions
    if len(executions) < 2 or trainer.args.torch_compile or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return None
    loader = trainer.get_train_dataloader() if training else trainer.get_eval_dataloader()
    batches = [trainer.model_inputs(trainer.prepare_batch(batch)) for batch in islice(loader, _MOST_BATCHES)]
    chosen, was_training = model.config.execution, model.training
    traces: dict[str, list[Any]] = {}

    def run(execution: str, count: int) -> None:
        model.config.execution = execution
        traces[execution] = []
        for batch in batches[:count]:
            with torch.set_grad_enabled(training), trainer.autocast_smart_context_manager():
                outputs = model(**batch)
            if training:
                outputs.loss.backward()
                model.zero_grad(set_to_none=True)
            traces[execution].append(outputs.trace)

    try:
        model.train(training)
        once = time_interleaved({"once": partial(run, executions[0], 1)}, 1, 1, trainer.args.device)["once"]["median"]
        count = min(len(batches), max(1, int(seconds / (once * len(executions) * (_REPEATS + 1)))))
        calls = {execution: partial(run, execution, count) for execution in executions}
        timed = time_interleaved(calls, _REPEATS, 1, trainer.args.device)
    finally:
        model.config.execution = chosen
        model.train(was_training)
    prices = [model.price(trace) for trace in traces["ragged"]]
    return ExecutionSpeed(
        speedup=timed["dense"]["median"] / timed["ragged"]["median"],
        allowed=float(sum(price.dense for price in prices) / sum(price.executed for price in prices)),
        sequences=max(len(trace.updates) for trace in traces["ragged"]),
    )
