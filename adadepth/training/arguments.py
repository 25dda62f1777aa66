"""What settings of the trainer need of the machine that the run is on, said before anything is prepared."""

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

from adadepth.errors import ConfigError, missing_package, nearest
from adadepth.measure.directions import prefers_greater
from adadepth.settings import ExperimentConfig, TrainerConfig
from adadepth.settings.experiment import BorrowedConfig, Precision
from adadepth.system.processes import is_one_of_several, join_again


def check_machine(config: ExperimentConfig) -> None:
    """Raise one ``ConfigError`` with a line for everything that is not here."""
    if problems := [*_sharding(config), *_compilation(config), *_backend(config)]:
        raise ConfigError("\n".join(problems))


def _sharding(config: ExperimentConfig) -> Iterator[str]:
    trainer = config.trainer
    if trainer.deepspeed is not None and importlib.util.find_spec("deepspeed") is None:
        yield f"trainer.deepspeed: {missing_package('deepspeed', 'deepspeed')}"
    if trainer.fsdp and not is_one_of_several():
        alone = "trainer.fsdp=true: shards over several processes, and this is one"
        yield f"{alone}; start it with torchrun, or set it to false"
    for name in ("deepspeed", "fsdp_config"):
        if isinstance(value := getattr(trainer, name), str):
            yield from _json_file(f"trainer.{name}={value}", Path(value).expanduser())


def _json_file(given: str, path: Path) -> Iterator[str]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        yield f"{given}: cannot be read ({error.strerror})"
    except ValueError as error:
        yield f"{given}: no JSON ({error})"
    else:
        if not isinstance(found, dict):
            yield f"{given}: must hold a mapping"


def _compilation(config: ExperimentConfig) -> Iterator[str]:
    """Backends and modes are torch's own, and asking for them takes a second."""
    backend, mode = config.trainer.torch_compile_backend, config.trainer.torch_compile_mode
    if not config.runtime.compile or (backend is None and mode is None):
        return
    known = {each.value.lower() for each in DynamoBackend}  # accelerate passes no other on
    backends = [name for name in torch.compiler.list_backends(exclude_tags=()) if name in known]
    if backend is not None and backend not in backends:
        allowed = ", ".join(backends)
        yield f"trainer.torch_compile_backend={backend}: must be one of {allowed}{nearest(backend, backends)}"
    modes = list(torch._inductor.list_mode_options())
    if mode is not None and mode not in modes:
        yield f"trainer.torch_compile_mode={mode}: must be one of {', '.join(modes)}{nearest(mode, modes)}"


def _backend(config: ExperimentConfig) -> Iterator[str]:
    backend = config.trainer.ddp_backend
    if backend is None:
        return
    known = [name for name in torch.distributed.Backend.backend_list if name not in ("undefined", "fake")]
    if backend not in known:
        yield f"trainer.ddp_backend={backend}: must be one of {', '.join(known)}{nearest(backend, known)}"
    elif not is_one_of_several():
        yield f"trainer.ddp_backend={backend}: read only with several processes; start it with torchrun"


def training_arguments(config: ExperimentConfig, checkpoints: Path | str = "unused") -> TrainingArguments:
    """Translate the `trainer`, `runtime` and `seed` settings.

    Args:
        config: The validated experiment.
        checkpoints: Where the trainer writes its checkpoints; left out where it is not known yet.

    Raises:
        ConfigError: If the machine lacks what they need, or transformers refuses a combination in its own words.
    """
    check_machine(config)
    join_again(config.trainer.ddp_backend, config.trainer.ddp_timeout)
    precision = choose_precision(config.trainer)
    trainer = dataclasses.asdict(config.trainer)
    values = {field.name: trainer[field.name] for field in dataclasses.fields(BorrowedConfig)} | {
        "output_dir": str(checkpoints),
        "seed": config.seed,
        "dataloader_num_workers": config.runtime.num_workers,
        "torch_compile": config.runtime.compile,
        "report_to": "none",
        "save_total_limit": None,  # checkpoints beyond the limit are deleted by `training.checkpoints`
        "greater_is_better": prefers_greater(config.trainer.metric_for_best_model, config.trainer.greater_is_better),
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
    if trainer["fsdp"] and arguments.fsdp_plugin_args["fsdp_version"] != 2:
        raise ConfigError("trainer.fsdp_config: version must be 2, torch's fully_shard")
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
