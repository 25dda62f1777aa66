"""Checks at the start of a run, before the first step: batch size, memory, sequence positions and depth."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
from transformers import TrainingArguments

from adadepth.config import BudgetUnit, ExperimentConfig, Mode
from adadepth.config.kinds import get_positions_setting
from adadepth.config.modes import modes
from adadepth.data.batches import get_lengths
from adadepth.data.streams.contiguous import StreamBatches
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.contract import DepthModel
from adadepth.models.memory_check import check_batch, compute_least_bytes, total_memory
from adadepth.training.arguments import choose_precision
from adadepth.training.depth_budget import full_depth


def check_batches(train: Any, args: TrainingArguments) -> None:
    """Raise an error if the training data do not fill one batch and incomplete batches are dropped.

    Raises:
        ConfigError: If they are smaller; the message has both numbers.
    """
    rows = args.train_batch_size * args.world_size
    counts_examples = isinstance(train, Sized) and not isinstance(train, StreamBatches)
    if args.dataloader_drop_last and counts_examples and len(train) < rows:
        suffix = f" in each of {args.world_size} processes" if args.world_size > 1 else ""
        raise ConfigError(
            f"trainer.per_device_train_batch_size={args.train_batch_size}: there are {len(train):,} training "
            f"examples, too few for a full batch{suffix}; smaller batches are dropped because "
            "trainer.dataloader_drop_last=true"
        )


def check_step_loss(path: str, model: Any) -> None:
    """Raise an error if the loss over exits of a checkpoint cannot be computed, before the evaluation data are read.

    Raises:
        ConfigError: If its package is missing; the message names checkpoint and setting.
    """
    if problem := model.step_loss_problem:
        raise ConfigError(f"checkpoint {path}: {problem}")


def check_state_maps(config: ExperimentConfig, model: Any) -> None:
    """Raise an error if diagnostics of states are configured for a model without a repeated map, or a sharded one.

    Raises:
        ConfigError: If they cannot be measured.
    """
    trainer, setting = config.trainer, "trainer.state_diagnostics=true"
    if not trainer.state_diagnostics:
        return
    if type(model).build_state_maps is DepthModel.build_state_maps:
        raise ConfigError(
            f"{setting}: model={config.model.name} does not update one state repeatedly with the same layers; "
            "leave it false"
        )
    for key in ("fsdp", "deepspeed"):
        if getattr(trainer, key, None):
            raise ConfigError(f"{setting}: needs a model in one piece, but trainer.{key} is set; leave one of both out")


def check_memory(config: ExperimentConfig, args: TrainingArguments, model: Any, train: Any) -> None:
    """Raise an error if even a micro-batch of the shortest examples does not fit into memory.

    Raises:
        ConfigError: If the memory is too small, or if the model does not support gradient checkpointing. The message
            lists the needed memory by part, and a batch size that fits if an installed mode can estimate one.
    """
    if args.gradient_checkpointing and not model.supports_gradient_checkpointing:
        name = model.config.model_type
        raise ConfigError(
            f"trainer.gradient_checkpointing=true: model={name} does not support recomputation; leave it false"
        )
    if (batch := _find_shortest_batch(train, args)) is not None:
        lengths, options = batch
        try:
            check_batch(model, lengths, **options)
        except ConfigError as error:
            raise ConfigError(f"{error}{_advise_batch_size(config)}") from error


def _advise_batch_size(config: ExperimentConfig) -> str:
    """Return advice on a batch size that fits into memory, or an empty text if none can be estimated."""
    advisers = [mode.batch_advice for mode in modes().values() if mode.batch_advice is not None]
    try:
        arguments = (config, total_memory(), choose_precision(config.trainer))
        return "".join(f"; {adviser()(*arguments)}" for adviser in advisers)
    except Exception:  # the error stands without advice, also for a model whose step cannot be rehearsed
        return ""


def estimate_least_memory(model: Any, train: Any, args: TrainingArguments) -> int | None:
    """Return the minimum memory of an optimiser step in bytes, or None if the lengths of examples are unknown."""
    if (batch := _find_shortest_batch(train, args)) is None:
        return None
    lengths, options = batch
    return compute_least_bytes(model, lengths, **options)[0]


def _find_shortest_batch(train: Any, args: TrainingArguments) -> tuple[Sequence[int], dict[str, Any]] | None:
    """Return the lengths of the shortest examples that form a micro-batch, and options of `compute_least_bytes`."""
    if isinstance(train, StreamBatches):
        shape = train[0]["input_ids"].shape
        lengths = [shape[1]] * shape[0]
    elif (all_lengths := get_lengths(train)) is not None:
        lengths = np.sort(all_lengths)[: args.train_batch_size].tolist()
    else:
        return None
    width = 2 if args.bf16 or args.fp16 else 4
    return lengths, {"width": width, "processes": args.world_size, "recomputed": bool(args.gradient_checkpointing)}


def check_positions(config: ExperimentConfig, model: Any) -> None:
    """Raise an error if the data have longer sequences than the model has positions.

    Raises:
        CheckpointError: If they are longer; the message has both numbers.
    """
    positions = model.longest_sequence
    key, needed = get_positions_setting(config.dataset)
    if positions is not None and needed > positions:
        raise CheckpointError(f"{key}={needed}: the model has only {positions} positions")


def check_depth(config: ExperimentConfig, model: Any) -> None:
    """Raise an error if the depth budget exceeds the full depth of the model.

    The full depth may not be known before the model is built.

    Raises:
        ConfigError: If the budget exceeds the full depth, which the message states.
    """
    budget = config.budget
    if budget.unit is BudgetUnit.milliseconds:
        return
    full = full_depth(budget.unit, model)
    trained = [] if config.mode is Mode.evaluate else [("budget.target", budget.target)]  # only training reads it
    targets = [*trained, *(("budget.targets", target) for target in budget.targets)]
    for key, target in targets:
        if target is not None and target > full:
            raise ConfigError(f"{key}={target:g}: must be at most {full:g}, in {budget.unit}")
