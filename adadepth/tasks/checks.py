"""What is checked before a run is opened: a full batch, memory, positions and depth."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
from transformers import TrainingArguments

from adadepth.data.batches import known_lengths
from adadepth.data.streams.contiguous import StreamBatches
from adadepth.errors import CheckpointError, ConfigError
from adadepth.families.size import check_batch, least_bytes, total_memory
from adadepth.settings import BudgetUnit, ExperimentConfig, Mode
from adadepth.settings.kinds import positions_read
from adadepth.settings.modes import modes
from adadepth.settings.plugins import load
from adadepth.training.arguments import choose_precision
from adadepth.training.held_depth import full_depth


def check_batches(train: Any, args: TrainingArguments) -> None:
    """Whether there is a full batch, where only full ones are read: nothing would be learned otherwise.

    Raises:
        ConfigError: If there is none.
    """
    rows = args.train_batch_size * args.world_size
    counts_examples = isinstance(train, Sized) and not isinstance(train, StreamBatches)
    if args.dataloader_drop_last and counts_examples and len(train) < rows:
        of_all = f" in each of {args.world_size} processes" if args.world_size > 1 else ""
        raise ConfigError(
            f"trainer.per_device_train_batch_size={args.train_batch_size}: there are {len(train):,} training examples, "
            f"and trainer.dataloader_drop_last=true leaves out a batch that they do not fill{of_all}"
        )


def check_memory(config: ExperimentConfig, args: TrainingArguments, model: Any, train: Any) -> None:
    """Whether a micro-batch of the shortest examples can be trained, where their lengths are known.

    Raises:
        ConfigError: With what it needs, by parts, and a batch that fits where an installed mode names one; or the model
            has nothing that it could compute again to need less.
    """
    if args.gradient_checkpointing and not model.supports_gradient_checkpointing:
        name = model.config.model_type
        raise ConfigError(f"trainer.gradient_checkpointing=true: model={name} computes nothing again; leave it false")
    if (batch := _shortest_batch(train, args)) is not None:
        lengths, options = batch
        try:
            check_batch(model, lengths, **options)
        except ConfigError as error:
            raise ConfigError(f"{error}{_smaller(config)}") from error


def _smaller(config: ExperimentConfig) -> str:
    """Say which batch of the longest examples fits into all memory there is, where an installed mode estimates it."""
    places = [mode.batch_advice for mode in modes().values() if mode.batch_advice is not None]
    try:
        known = (config, total_memory(), choose_precision(config.trainer))
        return "".join(f"; {load(place)(*known)}" for place in places)
    except Exception:  # the refusal stands without it, also of a model whose step cannot be rehearsed
        return ""


def least_memory(model: Any, train: Any, args: TrainingArguments) -> int | None:
    """Return the bytes that an update takes at the least; None where the lengths of the examples are not known."""
    if (batch := _shortest_batch(train, args)) is None:
        return None
    lengths, options = batch
    return least_bytes(model, lengths, **options)[0]


def _shortest_batch(train: Any, args: TrainingArguments) -> tuple[Sequence[int], dict[str, Any]] | None:
    """The lengths of a micro-batch of the shortest examples, and what else `least_bytes` asks for."""
    if isinstance(train, StreamBatches):
        shape = train[0]["input_ids"].shape
        lengths = [shape[1]] * shape[0]
    elif (found := known_lengths(train)) is not None:
        lengths = np.sort(found)[: args.train_batch_size].tolist()
    else:
        return None
    width = 2 if args.bf16 or args.fp16 else 4
    return lengths, {"width": width, "processes": args.world_size, "recomputed": bool(args.gradient_checkpointing)}


def check_positions(config: ExperimentConfig, model: Any) -> None:
    """Whether a model can read sequences as long as the settings ask for; vectors have no positions."""
    positions = model.longest_sequence
    key, needed = positions_read(config.dataset)
    if positions is not None and needed > positions:
        raise CheckpointError(f"{key}={needed}: the model has only {positions} positions")


def check_depth(config: ExperimentConfig, model: Any) -> None:
    """Whether a model whose size the settings do not tell has as much depth as its budget asks for.

    Raises:
        ConfigError: If it has less.
    """
    budget = config.budget
    if budget.unit is BudgetUnit.milliseconds:
        return
    full = full_depth(budget.unit, model)
    held = [] if config.mode is Mode.evaluate else [("budget.target", budget.target)]  # what only training reads
    targets = [*held, *(("budget.targets", target) for target in budget.targets)]
    for key, target in targets:
        if target is not None and target > full:
            raise ConfigError(f"{key}={target:g}: must be at most {full:g}, in {budget.unit}")
