"""The one place where an experiment's settings become `transformers.TrainingArguments`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch
from transformers import TrainingArguments

from adadepth.config import ExperimentConfig, TrainerConfig
from adadepth.config.trainer import BorrowedConfig, Precision
from adadepth.errors import ConfigError
from adadepth.training.machine import check_machine


def training_arguments(config: ExperimentConfig, checkpoints: Path | str = "unused") -> TrainingArguments:
    """Translate the `trainer`, `runtime` and `seed` settings.

    Args:
        config: The validated experiment.
        checkpoints: Where the trainer writes its checkpoints; left out where it is not known yet.

    Raises:
        ConfigError: If the machine lacks what they need, or transformers refuses a combination in its own words.
    """
    check_machine(config)
    precision = choose_precision(config.trainer)
    trainer = dataclasses.asdict(config.trainer)
    values = {field.name: trainer[field.name] for field in dataclasses.fields(BorrowedConfig)} | {
        "output_dir": str(checkpoints),
        "seed": config.seed,
        "dataloader_num_workers": config.runtime.num_workers,
        "torch_compile": config.runtime.compile,
        "report_to": "none",
        "save_total_limit": None,  # checkpoints beyond the limit are deleted by `training.checkpoints`
        "push_to_hub": False,  # transformers would upload every checkpoint; a run uploads its model, see `training.hub`
        # The collator decides what a batch carries, and statistics read more of it than the model does.
        "remove_unused_columns": False,
        # Replacing a non-finite loss by a running mean would hide it, at one host synchronisation a step.
        "logging_nan_inf_filter": False,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
    }
    if not torch.cuda.is_available():
        values["dataloader_pin_memory"] = False  # there is no device to pin for
    if not torch.accelerator.is_available():
        values["use_cpu"] = True  # several processes find each other only where the CPU is said to be meant
    if config.trainer.disable_tqdm is None:
        values["disable_tqdm"] = not sys.stderr.isatty()
    if not config.runtime.compile:
        # Naming a backend or a mode would switch compilation on.
        values |= {"torch_compile_backend": None, "torch_compile_mode": None}
    if config.runtime.num_workers == 0:
        values |= {"dataloader_prefetch_factor": None, "dataloader_persistent_workers": False}
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    if "activation_checkpointing" in known:
        values["activation_checkpointing"] = values.pop("gradient_checkpointing")
    try:
        arguments = TrainingArguments(**{name: value for name, value in values.items() if value not in (None, {})})
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"trainer: {error}") from error
    # One process drives one device; several devices are torchrun's business. DataParallel would copy every trace.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def choose_precision(trainer: TrainerConfig) -> str:
    """`bf16` where the GPU supports it, else `fp16` on a GPU, else `fp32`; or what the user asked for.

    Raises:
        ConfigError: fp16 is asked for without a GPU.
    """
    on_gpu = torch.cuda.is_available() and not trainer.use_cpu
    if trainer.precision is Precision.fp16 and not on_gpu:
        # transformers would write fp16 and compute fp32
        raise ConfigError("trainer.precision=fp16: needs a GPU, and there is none here; use auto, fp32 or bf16")
    if trainer.precision is not Precision.auto:
        return str(trainer.precision)
    if not on_gpu:
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
