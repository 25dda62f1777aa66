"""What settings of the trainer need of the machine that the run is on, said before anything is prepared."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DynamoBackend

from adadepth.config import ExperimentConfig
from adadepth.errors import ConfigError, missing_package, nearest
from adadepth.processes import is_one_of_several


def check_machine(config: ExperimentConfig) -> None:
    """Raise one ``ConfigError`` with a line for everything that is not here."""
    if problems := [*_sharding(config), *_compilation(config), *_backend(config)]:
        raise ConfigError("\n".join(problems))


def _sharding(config: ExperimentConfig) -> Iterator[str]:
    trainer = config.trainer
    if trainer.deepspeed is not None and importlib.util.find_spec("deepspeed") is None:
        yield f"trainer.deepspeed: {missing_package('deepspeed', 'deepspeed')}"
    if trainer.fsdp and not is_one_of_several():
        yield "trainer.fsdp=true: shards over several processes, and this is one; start it with torchrun"
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
