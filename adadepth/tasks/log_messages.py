"""What a run says of itself at its start and at its end."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import TrainerState, TrainingArguments

from adadepth.families.size import free_memory
from adadepth.runs.directory import Run
from adadepth.settings import ExperimentConfig, Mode
from adadepth.tasks.checks import least_memory
from adadepth.training.callbacks import StopCallback, rename_metrics

_GIB = 2**30


def describe_start(config: ExperimentConfig, args: TrainingArguments, run: Run, model: Any, data: Any) -> str:
    """Return what is run, on what, up to when, and where it is written."""
    record, summary, is_training = run.record, data.summary, config.mode is Mode.train
    counts = summary["train"] if "train" in summary else next(iter(summary["evaluation"].values()))
    unit = next((name for name in ("documents", "examples", "tokens") if name in counts), None)
    size = f"{counts[unit]:,} {unit}" if unit else "streamed"
    memory = _memory(args.device, least_memory(model, data.train, args) if is_training else None)
    on = [f"{record['precision']} on {_device(args)}", memory, _length(config, args) if is_training else None]
    return (
        f"{record['config_name']}: {record['parameters']:,} parameters, data {summary['name']} ({size}), "
        f"seed {record['seed']}\n{'; '.join(filter(None, on))}\nwriting to {run.directory}"
    )


def _length(config: ExperimentConfig, args: TrainingArguments) -> str:
    """Return the steps, epochs or minutes at which a training ends, in words."""
    epochs = f"{args.num_train_epochs:g} epoch{'s' * (args.num_train_epochs != 1)}"
    length = f"{args.max_steps:,} steps" if args.max_steps > 0 else epochs
    minutes = config.trainer.time_budget_minutes
    return length if minutes is None else f"{length}, at most {minutes:g} minutes"


def _device(args: TrainingArguments) -> str:
    threads = torch.get_num_threads()
    name = torch.cuda.get_device_name(args.device) if args.device.type == "cuda" else str(args.device).upper()
    processes = f"{args.world_size} processes, each on " if args.world_size > 1 else ""
    return f"{processes}{name}, {threads} thread{'s' * (threads != 1)}"


def _memory(device: torch.device, needed: int | None) -> str | None:
    if (found := free_memory(device)) is None:
        return None
    least = "" if needed is None else f", an update takes at least {math.ceil(needed / 2**20):,} MiB"
    return "memory {:,.1f} of {:,.1f} GiB free".format(*(size / _GIB for size in found)) + least


def describe_end(config: ExperimentConfig, args: TrainingArguments, stop: StopCallback, state: TrainerState) -> str:
    """Return why a training that was not interrupted is over, and its best step if one was chosen."""
    return "; ".join(filter(None, (_reason(config, stop, state), _best_step(args, state))))


def _reason(config: ExperimentConfig, stop: StopCallback, state: TrainerState) -> str:
    if stop.reason is not None:
        return f"{stop.reason}: {config.trainer.time_budget_minutes:g} minutes, at {_place(state)}"
    if state.global_step >= state.max_steps:
        return f"all {state.max_steps:,} steps are done"
    patience = config.trainer.early_stopping_patience
    if patience is not None:
        return f"early stopping at {_place(state)}, {patience} evaluations without improvement"
    return f"stopped early at {_place(state)}"


def _place(state: TrainerState) -> str:
    return f"step {state.global_step:,} of {state.max_steps:,}"


def _best_step(args: TrainingArguments, state: TrainerState) -> str | None:
    """Return the best step and its metric by name; None: none was chosen."""
    if not state.best_global_step or state.best_metric is None or args.metric_for_best_model is None:
        return None
    (name,) = rename_metrics({f"eval_{args.metric_for_best_model.removeprefix('eval_')}": state.best_metric})
    return f"best step {state.best_global_step:,}, {name} {state.best_metric:.4f}"
