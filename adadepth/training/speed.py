"""Tokens per second, and what leaving halted tokens out of the computation saves in time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from adadepth.models.par_xl.latency import time_interleaved
from adadepth.training.evaluation import add_over_processes

_REPEATS, _MOST_BATCHES, _SECONDS = 5, 16, 4.0

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
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def tokens_per_second(self) -> float:
        """Tokens of all processes over the mean of their seconds; every process calls it once."""
        add_over_processes([self._sums])
        tokens, seconds, processes = self._sums.tolist()
        return tokens * processes / seconds


def compare_executions(trainer: Any, dataset: Any) -> dict[str, float]:
    """Seconds of the model's executions on the first batches of a set: medians over rounds in which they take turns.

    Returns:
        By name, of as many batches as a few seconds allow; empty for a model that has one execution only.
    """
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    executions: tuple[str, ...] = getattr(model, "executions", ())
    if len(executions) < 2 or trainer.args.torch_compile or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return {}
    loader = islice(trainer.get_eval_dataloader(dataset), _MOST_BATCHES)
    batches = [trainer.model_inputs(trainer._prepare_inputs(batch)) for batch in loader]
    chosen = model.config.execution

    def run(execution: str, count: int) -> None:
        model.config.execution = execution
        with torch.no_grad(), trainer.autocast_smart_context_manager():
            for batch in batches[:count]:
                model(**batch)

    model.eval()
    first = time_interleaved({"once": partial(run, executions[0], 1)}, 1, 1, trainer.args.device)["once"]["median"]
    count = max(1, int(_SECONDS / (first * len(executions) * (_REPEATS + 1))))
    calls = {execution: partial(run, execution, count) for execution in executions}
    timed = time_interleaved(calls, _REPEATS, 1, trainer.args.device)
    model.config.execution = chosen
    return {execution: found["median"] for execution, found in timed.items()}
