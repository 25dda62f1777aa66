"""The trainer of a run, with what watches its loop, and that loop up to its end or an interruption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PrinterCallback, ProgressCallback, TrainingArguments

from adadepth.evaluation.evaluation import Evaluation
from adadepth.runs.directory import Run
from adadepth.runs.program import continuation_command
from adadepth.settings import ExperimentConfig
from adadepth.system.console import say
from adadepth.system.signals import pass_on
from adadepth.training.callbacks import (
    EarlyStoppingCallback,
    EpochCallback,
    StepCallback,
    StopCallback,
    TrackingCallback,
)
from adadepth.training.extension import Extension
from adadepth.training.remaining import ConsoleCallback, ProgressBarCallback
from adadepth.training.speed import profiled
from adadepth.training.trackers.base import Tracker
from adadepth.training.tracking import LogPosition, scalars
from adadepth.training.trainer import DepthTrainer


def build_trainer(
    config: ExperimentConfig,
    args: TrainingArguments,
    run: Run,
    tracker: Tracker,
    model: PreTrainedModel,
    data: Any,
    evaluation_sets: Mapping[str, Any],
    start_evaluation: Callable[[str], Evaluation],
    extensions: Sequence[Extension],
) -> tuple[DepthTrainer, TrackingCallback, StopCallback]:
    """Return a run's trainer, and of its callbacks those that hold its metrics and why it stopped.

    Args:
        config: The experiment.
        args: For the trainer.
        run: Open run, whose folder holds the log.
        tracker: Where metrics are logged.
        model: What is trained or evaluated.
        data: With `train` and `collate`.
        evaluation_sets: Examples by the name of their set.
        start_evaluation: Begins the evaluation of a set.
        extensions: What its training needs beside the loop.
    """
    stop, epochs = StopCallback(config.trainer.time_budget_minutes), EpochCallback()
    tracking = TrackingCallback(tracker, run.directory, has_target=config.budget.target is not None)
    tracking.last_metrics = scalars(run.directory)
    budget, is_averaged = config.trainer.time_budget_minutes, config.trainer.ema_decay is not None
    console = ConsoleCallback(budget, is_averaged=is_averaged)
    callbacks = [epochs, stop, tracking, console, StepCallback()]
    if config.trainer.early_stopping_patience is not None:
        threshold = config.trainer.early_stopping_threshold
        callbacks.append(EarlyStoppingCallback(config.trainer.early_stopping_patience, threshold))
    trainer = DepthTrainer(
        model,
        args,
        data,
        evaluation_sets,
        start_evaluation,
        config.trainer,
        callbacks,
        (*extensions, LogPosition(run.directory)),
    )
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(ProgressBarCallback)
    tracking.trainer = epochs.trainer = console.trainer = trainer
    return trainer, tracking, stop


def run_training(
    config: ExperimentConfig, trainer: DepthTrainer, stop: StopCallback, run: Path, checkpoint: Path | None, owner: Path
) -> None:
    """Train up to the end.

    Args:
        config: The experiment.
        trainer: Of the run.
        stop: Its callback that hears signals.
        run: Folder of the run.
        checkpoint: What it goes on with.
        owner: Folder of what goes on after an interruption: the run, or what it is a part of.

    Raises:
        SystemExit: After Ctrl-C or SIGTERM, once a checkpoint is written.
        DivergedError: If the weights or losses are not finite.
    """
    is_main = trainer.is_world_process_zero()
    if checkpoint is not None:
        trainer.args.eval_on_start = False
    with stop.listening(), profiled(trainer, run) if config.trainer.profiler and is_main else nullcontext():
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if stop.signal is not None:
        if is_main:
            say(f"{stop.why()} at step {trainer.state.global_step}")
            say(f"continue: {continuation_command(owner)}")
        pass_on(stop.signal)
        raise SystemExit(128 + stop.signal)
    trainer.refuse_weights()
