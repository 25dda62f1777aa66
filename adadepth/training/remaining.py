"""What a training says on the console: a line a log, with the time that is left, and what evaluations found."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.evaluation.scorer import EvaluationReport
from adadepth.report.architectures import architecture_text
from adadepth.report.classes import halting_text
from adadepth.report.exits import exits_text
from adadepth.report.layers import layers_text
from adadepth.system.console import minutes, say
from adadepth.training.callbacks import UNLOGGED, Logs
from adadepth.training.trainer import DepthTrainer

# Not worth a place on the console's line.
_OF_SPEED = ("tokens_per_second", "eval_tokens_per_second", "eval_runtime", "peak_memory_gib")
_UNPRINTED = (*UNLOGGED, *_OF_SPEED, "epoch", "learning_rate", "grad_norm", "step")


class ProgressBarCallback(ProgressCallback):
    """The bar alone; what is logged goes to the console in the project's own words."""

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Say nothing, since `ConsoleCallback` prints the logs."""


class ConsoleCallback(TrainerCallback):
    """One line a log: the losses, the learning rate, the speed, the time left; and what an evaluation found.

    The time left is that of the steps so far, with their evaluations, without the first step, which allocates memory.

    Args:
        budget_minutes: After which the training stops; None: it does not.
        is_averaged: Whether an average of the weights is evaluated, which lags behind those that train.
    """

    def __init__(self, budget_minutes: float | None, *, is_averaged: bool) -> None:
        self.trainer: DepthTrainer | None = None
        self._budget = math.inf if budget_minutes is None else 60 * budget_minutes
        self._begun = 0.0
        self._first: tuple[int, float] | None = None  # the first step of this process, and when it ended
        self._remark = " (averaged weights)" if is_averaged else ""
        self._best: int | None = None  # the step of the weights that are evaluated, when training is over

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock of the time that is left."""
        self._begun, self._first = time.monotonic(), None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note when the first step ended."""
        if self._first is None:
            self._first = state.global_step, time.monotonic()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """From here on the best weights are evaluated, where they were loaded."""
        self._best = state.best_global_step if args.load_best_model_at_end else None

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Logs = None, **kwargs: Any
    ) -> None:
        """Print the line, above the progress bar where there is one."""
        if not state.is_world_process_zero or not logs:
            return
        prefix = "eval_" if "eval_loss" in logs else ""
        if f"{prefix}loss" not in logs:
            return
        own = () if self.trainer is None else self.trainer.extensions
        unprinted = {*_UNPRINTED, *(name for each in own for name in each.tells)}
        names = [name for name in logs if name.startswith(prefix) and name not in unprinted and "/" not in name]
        values = [f"{name.removeprefix(prefix)} {logs[name]:.4f}" for name in sorted(names, key=_losses_first)]
        if "learning_rate" in logs:
            values.append(f"lr {logs['learning_rate']:.2e}")
        values += (told for each in own for told in each.words(logs))
        values.append(f"{logs[f'{prefix}tokens_per_second']:,.0f} tokens/s")
        if not prefix and (left := self.seconds_left(state)) is not None:
            values.append(f"{minutes(left)} left")
        label = f"eval{self._evaluated(state)}{self._remark}" if prefix else f"train {_step(state)}"
        say(f"{label}: " + ", ".join(values))

    def seconds_left(self, state: TrainerState) -> float | None:
        """Return the time until the last step, or until the time budget is spent; None: not known yet."""
        first, begun = self._first or (state.global_step, 0.0)
        if state.global_step <= first:
            return None
        now = time.monotonic()
        needed = (state.max_steps - state.global_step) * (now - begun) / (state.global_step - first)
        return min(needed, max(0.0, self._budget - (now - self._begun)))

    def _evaluated(self, state: TrainerState) -> str:
        """Which weights an evaluation is of; without a training nothing is to be told apart."""
        if self._best is not None:
            return f" best checkpoint, step {self._best}"
        return f" {_step(state)}" if state.max_steps else ""

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Print what the evaluation found, by set: in short within a training, which shows its table at its end."""
        if not state.is_world_process_zero:
            return
        in_short = state.max_steps > 0
        reports = {} if self.trainer is None else self.trainer.last_reports
        step = state.global_step if self._best is None else self._best
        for number, (name, report) in enumerate(reports.items()):
            if number and report.statistics["unit"] == "task":
                continue  # one distribution for all sets
            if number:
                say(f"evaluation set {name}:")
            say("\n".join(_shortened(report, step) if in_short else _tables(report, step)))


def _step(state: TrainerState) -> str:
    return f"step {state.global_step}/{state.max_steps}"


def _tables(report: EvaluationReport, step: int) -> Iterator[str]:
    known = (("layers", layers_text), ("architecture", architecture_text))
    draw = next((table for key, table in known if key in report.statistics), halting_text)
    yield draw(report.statistics, step)
    if report.exits is not None:
        yield exits_text(report.exits)


def _shortened(report: EvaluationReport, step: int) -> Iterator[str]:
    """What stands above the first table, and warnings."""
    head, _, rest = next(_tables(report, step)).partition("\n\n")
    yield head
    yield from (line for line in rest.splitlines() if line.startswith("warning: "))


def _losses_first(name: str) -> tuple[bool, bool]:
    return not name.endswith("_loss") and name != "loss", name not in ("loss", "eval_loss")
