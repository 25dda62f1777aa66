"""Console output during training: a line per log entry with the remaining time, and the results of evaluations."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from typing import Any

from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.evaluation.scorer import EvaluationReport
from adadepth.report.architectures import format_architecture
from adadepth.report.depth_by_class import format_halting
from adadepth.report.exits import format_exits
from adadepth.report.layers import format_layers
from adadepth.runtime.console import minutes, say
from adadepth.runtime.threads import get_thread_limit, read_waiting_seconds
from adadepth.training.callbacks import UNLOGGED, Logs
from adadepth.training.trainer import DepthTrainer

# Values that the line of the console leaves out.
_OF_SPEED = ("tokens_per_second", "eval_tokens_per_second", "eval_runtime", "peak_memory_gib")
_WAITING_SHARE, _MIN_ELAPSED_S = 0.25, 5.0  # of the time that threads wait for a CPU, from which on a run is slow
_UNPRINTED = (*UNLOGGED, *_OF_SPEED, "epoch", "learning_rate", "grad_norm", "step")


class ProgressBarCallback(ProgressCallback):
    """Progress bar of transformers' trainer, without the lines that it prints for logs."""

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Suppress transformers' log output, because `ConsoleCallback` prints the logs."""


class ConsoleCallback(TrainerCallback):
    """Callback that prints losses, learning rate, speed, remaining time and evaluation results on the console.

    The remaining time is estimated from the duration of the steps so far, including their evaluations. The first step
    is excluded, because it allocates memory.

    Args:
        budget_minutes: Time budget of the training in minutes, or None for no limit.
        is_averaged: Whether a moving average of the weights is evaluated in place of the weights in training.
    """

    def __init__(self, budget_minutes: float | None, *, is_averaged: bool) -> None:
        self.trainer: DepthTrainer | None = None
        self._budget = math.inf if budget_minutes is None else 60 * budget_minutes
        self._begun = 0.0
        self._first: tuple[int, float] | None = None  # number and end time of the first step of this process
        self._remark = " (averaged weights)" if is_averaged else ""
        self._best: int | None = None  # step of the loaded checkpoint after training
        self._waited: float | None = None  # seconds at the start of training; None: not measured, or said

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock for the estimate of the remaining time."""
        self._begun, self._first, self._waited = time.monotonic(), None, read_waiting_seconds()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record when the first step ended, as the start for estimating the speed of later steps."""
        if self._first is None:
            self._first = state.global_step, time.monotonic()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record the step of the best weights if they were loaded, for the output of later evaluations."""
        self._best = state.best_global_step if args.load_best_model_at_end else None

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Logs = None, **kwargs: Any
    ) -> None:
        """Print the log entry as a line, above the progress bar if there is one."""
        if not state.is_world_process_zero or not logs:
            return
        prefix = "eval_" if "eval_loss" in logs else ""
        if f"{prefix}loss" not in logs:
            return
        extensions = () if self.trainer is None else self.trainer.extensions
        unprinted = {*_UNPRINTED, *(name for extension in extensions for name in extension.described_logs)}
        names = [name for name in logs if name.startswith(prefix) and name not in unprinted and "/" not in name]
        values = [f"{name.removeprefix(prefix)} {logs[name]:.4f}" for name in sorted(names, key=_sort_key)]
        if "learning_rate" in logs:
            values.append(f"lr {logs['learning_rate']:.2e}")
        values += (text for extension in extensions for text in extension.format_logs(logs))
        values.append(f"{logs[f'{prefix}tokens_per_second']:,.0f} tokens/s")
        if not prefix and (seconds := self.seconds_left(state)) is not None:
            values.append(f"{minutes(seconds)} left")
        label = f"eval{self._describe_weights(state)}{self._remark}" if prefix else f"train {_format_step(state)}"
        say(f"{label}: " + ", ".join(values), wraps=True)
        if not prefix:
            self._warn_of_other_load()

    def _warn_of_other_load(self) -> None:
        """Say once that threads of this run wait for a processor, because another process has started meanwhile."""
        threads, elapsed = get_thread_limit(), time.monotonic() - self._begun
        if self._waited is None or threads == 1 or elapsed < _MIN_ELAPSED_S:
            return
        if (waited := read_waiting_seconds()) is None:
            return
        share = (waited - self._waited) / elapsed
        if share > _WAITING_SHARE:
            say(
                f"other processes slow this run down: its {threads} threads waited {share:.0%} of the time for a CPU; "
                f"to go on with fewer, stop it (Ctrl-C) and resume it with runtime.threads={threads - 1}",
                logging.WARNING,
                wraps=True,
            )
            self._waited = None

    def seconds_left(self, state: TrainerState) -> float | None:
        """Estimate the seconds until the last step or the end of the time budget; return None without data."""
        first, begun = self._first or (state.global_step, 0.0)
        if state.global_step <= first:
            return None
        now = time.monotonic()
        needed = (state.max_steps - state.global_step) * (now - begun) / (state.global_step - first)
        return min(needed, max(0.0, self._budget - (now - self._begun)))

    def _describe_weights(self, state: TrainerState) -> str:
        """Describe which weights are evaluated, e.g. their step; return an empty text without training."""
        if self._best is not None:
            return f" best checkpoint, step {self._best}"
        return f" {_format_step(state)}" if state.max_steps else ""

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Print the results of each evaluation set. Depth tables are printed only after training."""
        if not state.is_world_process_zero:
            return
        format_report = _format_summary if state.max_steps > 0 else _format_tables
        reports = {} if self.trainer is None else self.trainer.last_reports
        step = (state.global_step or None) if self._best is None else self._best  # None: weights of an unknown step
        for number, (name, report) in enumerate(reports.items()):
            if number and report.statistics["unit"] == "task":
                continue  # one distribution for all sets
            if number:
                say(f"evaluation set {name}:")
            say("\n".join(format_report(report, step)), wraps=True)


def _format_step(state: TrainerState) -> str:
    return f"step {state.global_step}/{state.max_steps}"


def _format_tables(report: EvaluationReport, step: int | None) -> Iterator[str]:
    formats = (("layers", format_layers), ("architecture", format_architecture))
    format_statistics = next((text for key, text in formats if key in report.statistics), format_halting)
    yield format_statistics(report.statistics, step)
    if report.exits is not None:
        yield format_exits(report.exits)


def _format_summary(report: EvaluationReport, step: int | None) -> Iterator[str]:
    """Yield the text above the first table of an evaluation."""
    yield next(_format_tables(report, step)).partition("\n\n")[0]


def _sort_key(name: str) -> tuple[bool, bool]:
    """Return a sort key that puts losses first, with the total loss before its parts."""
    return not name.endswith("_loss") and name != "loss", name not in ("loss", "eval_loss")
