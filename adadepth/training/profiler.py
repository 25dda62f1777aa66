"""`trainer.profiler=true`: where the time of a few updates goes, as a trace that ui.perfetto.dev opens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.profiler import profile, schedule
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.console import say

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
        """Tell it."""
        self._tracing.step()
