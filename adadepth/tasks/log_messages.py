"""Log messages at the start, at an interruption and at the end of a run."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerState, TrainingArguments

from adadepth.config import ExperimentConfig, Mode
from adadepth.data.run_data import RunData
from adadepth.models.memory_check import free_memory
from adadepth.runs.checkpoints import list_complete_checkpoints
from adadepth.runs.commands import format_resume_command
from adadepth.runs.directory import CHECKPOINTS, Run, get_owner
from adadepth.runtime.console import say
from adadepth.runtime.distributed import is_main_process
from adadepth.runtime.threads import describe_threads
from adadepth.tasks.checks import estimate_least_memory
from adadepth.training.arguments import describe_precision
from adadepth.training.callbacks import StopCallback, describe_interruption, rename_metrics

_GIB = 2**30
_FEWEST_EQUAL = 3  # equal values of a metric that are no chance


def describe_start(config: ExperimentConfig, args: TrainingArguments, run: Run, model: Any, data: RunData) -> str:
    """Format the start message of a run: model, data, device, length of training, and directory."""
    record, summary, is_training = run.record, data.summary, config.mode is Mode.train
    counts = summary["train"] if "train" in summary else next(iter(summary["evaluation"].values()))
    unit = next((name for name in ("documents", "examples", "tokens") if name in counts), None)
    size = f"{counts[unit]:,} {unit}" if unit else "streamed"
    memory = _format_memory(args.device, estimate_least_memory(model, data.train, args) if is_training else None)
    device = torch.cuda.get_device_name(args.device) if args.device.type == "cuda" else str(args.device).upper()
    processes = f"{args.world_size} processes, each on " if args.world_size > 1 else ""
    on = [
        f"{processes}{device}, {describe_threads()}",
        memory,
        _format_length(config, args) if is_training else None,
    ]
    return (
        f"{record['config_name']}: {record['parameters']:,} parameters, data {summary['name']} ({size}), "
        f"seed {record['seed']}\n{describe_precision(config.trainer)}\n{'; '.join(filter(None, on))}\n"
        f"writing to {run.directory}"
    )


def _format_length(config: ExperimentConfig, args: TrainingArguments) -> str:
    """Format the planned length of a training run: steps, epochs or minutes."""
    epochs = f"{args.num_train_epochs:g} epoch{'s' * (args.num_train_epochs != 1)}"
    length = f"{args.max_steps:,} steps" if args.max_steps > 0 else epochs
    minutes = config.trainer.time_budget_minutes
    return length if minutes is None else f"{length}, at most {minutes:g} minutes"


def _format_memory(device: torch.device, needed: int | None) -> str | None:
    if (sizes := free_memory(device)) is None:
        return None
    least = "" if needed is None else f", an optimiser step needs at least {math.ceil(needed / 2**20):,} MiB"
    return "memory {:,.1f} of {:,.1f} GiB free".format(*(size / _GIB for size in sizes)) + least


def format_interruption(number: int, state: TrainerState, run: Path | None) -> str:
    """Format the signal and the step at which a run was interrupted, with the command that resumes it.

    Args:
        number: Signal.
        state: State of training.
        run: Directory of the run to resume; None: no checkpoint is complete.
    """
    line = f"{describe_interruption(number)} at step {state.global_step}"
    if run is None:
        return f"{line}, without a checkpoint: this run cannot be resumed"
    return f"{line}\ncontinue: {format_resume_command(run)}"


@contextmanager
def report_interruption(config: ExperimentConfig, trainer: Trainer, stop: StopCallback, run: Path) -> Iterator[None]:
    """Say how to resume a training run that a signal ends within the `with` block, unless that is said already.

    If the run is a part of another run, that run is resumed, which needs no checkpoint of the part.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        number = _get_signal(error)
        if number and config.mode is Mode.train and is_main_process() and not stop.is_reported:
            with suppress(OSError):
                resumable = get_owner() or (run if list_complete_checkpoints(run / CHECKPOINTS) else None)
                say(format_interruption(number, trainer.state, resumable))
        raise


def _get_signal(error: BaseException) -> int | None:
    """Return the signal that ends the program with an error, or None if no signal does."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    code = getattr(error, "code", None)
    number = code - 128 if isinstance(code, int) else None
    return number if number in set(map(int, signal.Signals)) else None


def describe_end(config: ExperimentConfig, args: TrainingArguments, stop: StopCallback, state: TrainerState) -> str:
    """Format why training ended without interruption, with its best step if one was selected."""
    line = _format_reason(config, stop, state)
    selection = describe_selection(args, state)
    if selection is not None and state.best_global_step:
        line += f"; best step {state.best_global_step:,}, {selection['metric']} {selection['value']:.4f}"
    return line if (warning := _warn_of_constant_metric(args, state)) is None else f"{line}\n{warning}"


def _format_reason(config: ExperimentConfig, stop: StopCallback, state: TrainerState) -> str:
    if stop.reason is not None:
        return f"{stop.reason}: {config.trainer.time_budget_minutes:g} minutes, at {_format_step(state)}"
    if state.global_step >= state.max_steps:
        return f"all {state.max_steps:,} steps are done"
    patience = config.trainer.early_stopping_patience
    if patience is not None:
        return f"early stopping at {_format_step(state)}, {patience} evaluations without improvement"
    return f"stopped early at {_format_step(state)}"


def _format_step(state: TrainerState) -> str:
    return f"step {state.global_step:,} of {state.max_steps:,}"


def _warn_of_constant_metric(args: TrainingArguments, state: TrainerState) -> str | None:
    """Format a warning that the selection metric had one value at all evaluations, or return None if it had several.

    No evaluation was then better than the first one, whose step is kept whatever later steps learned.
    """
    if not args.load_best_model_at_end or args.metric_for_best_model is None:
        return None
    name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
    values = [entry[name] for entry in state.log_history if name in entry]
    if len(values) < _FEWEST_EQUAL or len(set(values)) != 1:
        return None
    return (
        f"warning: {name} was {values[0]:.4g} at all {len(values)} evaluations, so it cannot select a step; "
        "set trainer.metric_for_best_model to a metric that changes"
    )


def describe_selection(args: TrainingArguments, state: TrainerState) -> dict[str, Any] | None:
    """Return the step of the best model with the metric that selected it, or None if no metric selects the model."""
    is_selected = args.load_best_model_at_end and state.best_metric is not None
    if not is_selected or state.best_global_step is None or args.metric_for_best_model is None:
        return None
    (name,) = rename_metrics({f"eval_{args.metric_for_best_model.removeprefix('eval_')}": 0.0})
    return {
        "step": state.best_global_step,
        "metric": name,
        "value": state.best_metric,
        "extreme": "highest" if args.greater_is_better else "lowest",
    }
