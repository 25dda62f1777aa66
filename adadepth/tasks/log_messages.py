"""Log messages at the start, at an interruption and at the end of a run."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerState, TrainingArguments

from adadepth.config import ExperimentConfig, Mode
from adadepth.data.run_data import RunData
from adadepth.models.memory_check import free_memory
from adadepth.models.registry import family
from adadepth.runs.checkpoints import list_complete_checkpoints
from adadepth.runs.commands import format_resume_command
from adadepth.runs.directory import CHECKPOINTS, Run, get_owner
from adadepth.runtime.console import RESULT, say
from adadepth.runtime.distributed import is_main_process
from adadepth.runtime.threads import describe_threads
from adadepth.tasks.checks import estimate_least_memory
from adadepth.training.arguments import describe_precision
from adadepth.training.callbacks import StopCallback, describe_interruption, rename_metrics

_GIB = 2**30
_FEWEST_EQUAL = 3  # equal values of a metric that are no chance


def describe_start(config: ExperimentConfig, args: TrainingArguments, run: Run, model: Any, data: RunData) -> str:
    """Format the settings in effect in five lines: model, data, training, machine, and what is selected and written.

    Warnings of the model's family follow. An evaluation has neither these nor a line on training.
    """
    is_training = config.mode is Mode.train
    needed = estimate_least_memory(model, data.train, args) if is_training else None
    lines = [
        f"{run.record['config_name']}: {_format_model(config, run, model)}",
        f"data: {_format_data(data)}",
        f"training: {_format_training(config, args)}" if is_training else None,
        f"machine: {_format_machine(config, args, needed)}",
        f"output: {_format_selection(config, args)}, in {run.directory}" if is_training else f"output: {run.directory}",
    ]
    if is_training:
        lines += [f"warning: {line}" for warn in family(config.model.name).warnings for line in warn(config)]
    return "\n".join(filter(None, lines))


def _format_model(config: ExperimentConfig, run: Run, model: Any) -> str:
    """Format class, parameters and depth of a model."""
    parameters, trained = run.record["parameters"], run.record["trainable_parameters"]
    unit, most, fixed = model.depth_unit, model.max_updates, model.one_depth
    depth = f"{fixed or f'at most {most}'} updates per {unit}"
    parts = [
        f"{type(model).__name__}, {parameters:,} parameters",
        None if trained == parameters else f"{trained:,} of them trained",
        depth,
        None if config.budget.target is None else f"target {config.budget.target:g} ({config.budget.unit})",
    ]
    return ", ".join(filter(None, parts))


def _format_data(data: RunData) -> str:
    """Format the name of the data, and the size of the training set and of all evaluation sets."""
    summary = data.summary
    counts = {name: summary[name] for name in ("train", "evaluation") if name in summary}
    if "evaluation" in counts and all(isinstance(entry, dict) for entry in counts["evaluation"].values()):
        counts |= counts.pop("evaluation")
    sizes = [
        f"{'training' if name == 'train' else name}{_format_range(summary, name)} {_format_size(entry)}"
        for name, entry in counts.items()
    ]
    name = ", ".join(filter(None, [summary["name"], _format_newlines(summary)]))
    return "; ".join([name, *sizes])


def _format_newlines(summary: Mapping[str, Any]) -> str | None:
    """Format what text in blocks has instead of newlines, or between documents; None for other data."""
    if "keep_newlines" not in summary:
        return None
    if summary["keep_newlines"]:
        return "newlines kept" + (", an end token after every document" if summary["append_eos"] else "")
    return "an end token instead of every newline" if summary["append_eos"] else "newlines removed"


def _format_range(summary: Mapping[str, Any], name: str) -> str:
    """Format the difficulties of an evaluation set of generated data, such as ` (hops 0 to 5)`."""
    ranges = {fact: values[name] for fact, values in summary.items() if isinstance(values, dict) and name in values}
    texts = [
        f"{fact} {' to '.join(map(str, value)) if isinstance(value, list) else value}"
        for fact, value in ranges.items()
        if isinstance(value, int | list)
    ]
    return f" ({', '.join(texts)})" if texts else ""


def _format_size(counts: Mapping[str, Any]) -> str:
    """Format the number of examples of a set, with its documents and the tokens that are read, if they are known."""
    units = [name for name in ("documents", "examples") if isinstance(counts.get(name), int)]
    parts = [f"{counts[name]:,} {name}" for name in units]
    if isinstance(tokens := counts.get("tokens"), int):
        used = counts.get("tokens_used", tokens)
        cut = 1 - used / max(tokens, 1)
        share = "under 1%" if cut < 0.01 else f"{cut:.0%}"
        parts.append(f"{used:,} tokens" + (f" ({share} of {tokens:,} are cut)" if used < tokens else ""))
    return ", ".join(parts) or "streamed"


def _format_training(config: ExperimentConfig, args: TrainingArguments) -> str:
    """Format length, batch size, optimizer and learning rate of a training run."""
    trainer, warmup = config.trainer, config.trainer.warmup_steps
    parts = [
        _format_length(config, args),
        f"batch {args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size}",
        trainer.optimizer,
        f"lr {trainer.learning_rate:g}",
        f"{trainer.schedule} schedule",
        (f"warm-up {warmup:.0%} of steps" if warmup < 1 else f"warm-up {warmup:g} steps") if warmup else None,
    ]
    return ", ".join(filter(None, parts))


def _format_length(config: ExperimentConfig, args: TrainingArguments) -> str:
    """Format the planned length of a training run: steps, epochs or minutes."""
    epochs = f"{args.num_train_epochs:g} epoch{'s' * (args.num_train_epochs != 1)}"
    length = f"{args.max_steps:,} steps" if args.max_steps > 0 else epochs
    minutes = config.trainer.time_budget_minutes
    return length if minutes is None else f"{length} or {minutes:g} minutes"


def _format_machine(config: ExperimentConfig, args: TrainingArguments, needed: int | None) -> str:
    """Format device, threads, precision, seed and memory of a run.

    Args:
        config: Experiment.
        args: Training arguments.
        needed: Least memory of an optimiser step in bytes, or None if it is unknown.
    """
    device = torch.cuda.get_device_name(args.device) if args.device.type == "cuda" else str(args.device).upper()
    processes = f"{args.world_size} processes, each on " if args.world_size > 1 else ""
    settings = f"{describe_precision(config.trainer)}, seed {config.seed}"
    parts = [f"{processes}{device}, {describe_threads()}, {settings}", _format_memory(args.device, needed)]
    return "; ".join(filter(None, parts))


def _format_selection(config: ExperimentConfig, args: TrainingArguments) -> str:
    """Format when a run evaluates and which step it keeps."""
    often = {"steps": f"every {args.eval_steps:g} steps" if args.eval_steps else "", "epoch": "after every epoch"}
    strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
    evaluation = f"evaluation {often.get(strategy, 'at the end')}"
    metric = args.metric_for_best_model
    if not args.load_best_model_at_end or metric is None:
        return f"{evaluation}, keeps the last step"
    (name,) = rename_metrics({f"eval_{metric.removeprefix('eval_')}": 0.0})
    extreme, candidates = "highest" if args.greater_is_better else "lowest", "step"
    if config.budget.target is not None:
        candidates = "step on target"
    return f"{evaluation}, keeps the {candidates} with the {extreme} {name}"


def _format_memory(device: torch.device, needed: int | None) -> str | None:
    if (sizes := free_memory(device)) is None:
        return None
    least = "" if needed is None else f", a step needs at least {math.ceil(needed / 2**20):,} MiB"
    return "{:,.1f} of {:,.1f} GiB free".format(*(size / _GIB for size in sizes)) + least


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
                say(format_interruption(number, trainer.state, resumable), RESULT)
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
