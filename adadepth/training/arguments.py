"""Conversion of the settings to transformers' `TrainingArguments`, and checks that the machine supports them."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DynamoBackend
from transformers import TrainingArguments

from adadepth.config import ExperimentConfig, TrainerConfig
from adadepth.config.experiment import BorrowedConfig, Precision
from adadepth.errors import ConfigError, missing_package, nearest
from adadepth.metrics.directions import prefers_greater
from adadepth.runtime.distributed import is_distributed, reinit_process_group
from adadepth.training.lora import trains_adapters


def check_machine(config: ExperimentConfig) -> None:
    """Raise an error if this machine lacks something that the trainer's settings need, such as a GPU.

    Raises:
        ConfigError: If something is missing; the message has one line for each missing requirement.
    """
    if problems := [*_check_sharding(config), *_check_compilation(config), *_check_backend(config)]:
        raise ConfigError("\n".join(problems))


def _check_sharding(config: ExperimentConfig) -> Iterator[str]:
    trainer = config.trainer
    if trainer.deepspeed is not None and importlib.util.find_spec("deepspeed") is None:
        yield f"trainer.deepspeed: {missing_package('deepspeed', 'deepspeed')}"
    if trains_adapters(config) and importlib.util.find_spec("peft") is None:
        yield f"trainer.lora.rank={trainer.lora.rank}: {missing_package('peft', 'adadepth[lora]')}"
    if trainer.fsdp and not is_distributed():
        alone = "trainer.fsdp=true: shards over several processes, but there is only one"
        yield f"{alone}; start it with torchrun, or set it to false"
    for name in ("deepspeed", "fsdp_config"):
        if isinstance(value := getattr(trainer, name), str):
            yield from _check_json_file(f"trainer.{name}={value}", Path(value).expanduser())


def _check_json_file(setting: str, path: Path) -> Iterator[str]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        yield f"{setting}: cannot be read ({error.strerror})"
    except ValueError as error:
        yield f"{setting}: not JSON ({error})"
    else:
        if not isinstance(content, dict):
            yield f"{setting}: must hold a mapping"


def _check_compilation(config: ExperimentConfig) -> Iterator[str]:
    """Check that the backend and the mode of torch.compile exist and fit the settings.

    The check runs only if compilation is configured, because torch takes a second to list its backends.
    """
    backend, mode = config.trainer.torch_compile_backend, config.trainer.torch_compile_mode
    if not config.runtime.compile or (backend is None and mode is None):
        return
    passed = {backend.value.lower() for backend in DynamoBackend}  # accelerate passes on no other
    backends = [name for name in torch.compiler.list_backends(exclude_tags=()) if name in passed]
    if backend is not None and backend not in backends:
        allowed = ", ".join(backends)
        yield f"trainer.torch_compile_backend={backend}: must be one of {allowed}{nearest(backend, backends)}"
    modes = list(torch._inductor.list_mode_options())
    if mode is not None and mode not in modes:
        yield f"trainer.torch_compile_mode={mode}: must be one of {', '.join(modes)}{nearest(mode, modes)}"


def _check_backend(config: ExperimentConfig) -> Iterator[str]:
    backend = config.trainer.ddp_backend
    if backend is None:
        return
    backends = [name for name in torch.distributed.Backend.backend_list if name not in ("undefined", "fake")]
    if backend not in backends:
        yield f"trainer.ddp_backend={backend}: must be one of {', '.join(backends)}{nearest(backend, backends)}"
    elif not is_distributed():
        yield f"trainer.ddp_backend={backend}: only used with several processes; start it with torchrun"


def training_arguments(config: ExperimentConfig, checkpoints: Path | str = "unused") -> TrainingArguments:
    """Build transformers' `TrainingArguments` from the settings `trainer`, `runtime` and `seed`.

    Args:
        config: The validated experiment.
        checkpoints: Folder of the checkpoints. Omit it if the folder is not known yet.

    Raises:
        ConfigError: If the machine lacks something that the settings need, or if transformers rejects their
            combination.
    """
    check_machine(config)
    reinit_process_group(config.trainer.ddp_backend, config.trainer.ddp_timeout)
    precision = choose_precision(config.trainer)
    trainer = dataclasses.asdict(config.trainer)
    values = {field.name: trainer[field.name] for field in dataclasses.fields(BorrowedConfig)} | {
        "output_dir": str(checkpoints),
        "seed": config.seed,
        "dataloader_num_workers": config.runtime.num_workers,
        "torch_compile": config.runtime.compile,
        "report_to": "none",
        "save_total_limit": None,  # `adadepth.runs.checkpoints` deletes the oldest checkpoints
        "greater_is_better": prefers_greater(config.trainer.metric_for_best_model, config.trainer.greater_is_better),
        "push_to_hub": False,  # transformers would upload every checkpoint; a run uploads only its model
        # Statistics read columns of a batch that the model does not.
        "remove_unused_columns": False,
        # Replacing a non-finite loss by a running mean would hide it, at one host synchronisation a step.
        "logging_nan_inf_filter": False,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
    }
    if config.trainer.ddp_find_unused_parameters is None:
        # Which parameters a step leaves without a gradient is read from its graph, not derived from the settings.
        values["ddp_find_unused_parameters"] = True
    if not torch.cuda.is_available():
        values["dataloader_pin_memory"] = False  # there is no device to pin for
    if not torch.accelerator.is_available():
        values["use_cpu"] = True  # without it, several processes on CPUs do not connect
    if config.trainer.disable_tqdm is None:
        values["disable_tqdm"] = not sys.stderr.isatty()
    if not config.runtime.compile:
        # Naming a backend or a mode would switch compilation on.
        values |= {"torch_compile_backend": None, "torch_compile_mode": None}
    if config.runtime.num_workers == 0:
        values |= {"dataloader_prefetch_factor": None, "dataloader_persistent_workers": False}
    if "activation_checkpointing" in {field.name for field in dataclasses.fields(TrainingArguments)}:
        values["activation_checkpointing"] = values.pop("gradient_checkpointing")
    try:
        arguments = TrainingArguments(**{name: value for name, value in values.items() if value not in (None, {})})
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"trainer: {error}") from error
    if trainer["fsdp"] and arguments.fsdp_plugin_args["fsdp_version"] != 2:
        raise ConfigError("trainer.fsdp_config: version must be 2, torch's fully_shard")
    # One process uses one device, and torchrun starts several. DataParallel would copy every trace.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def choose_precision(trainer: TrainerConfig) -> str:
    """Return the configured precision of computation; `auto` is resolved for the device.

    `auto` is `bf16` if the GPU supports it, `fp16` on any other GPU, and `fp32` without a GPU.

    Raises:
        ConfigError: If fp16 is configured without a GPU.
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


def describe_precision(trainer: TrainerConfig) -> str:
    """Format the precision of computation and, if a run chose it, why."""
    precision = choose_precision(trainer)
    if trainer.precision is not Precision.auto:
        return precision
    no_gpu = "the run must use the CPU" if trainer.use_cpu else "no CUDA device"
    reasons = {"bf16": "the device supports it", "fp16": "the device does not support bf16", "fp32": no_gpu}
    return f"{precision} ({reasons[precision]})"
