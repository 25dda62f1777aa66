"""Checks that the machine has enough memory to train a model, before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from adadepth.errors import ConfigError

_GIB = 2**30
# Bytes per number in float32: values of all parameters; a gradient and two moments of trained ones.
_PARTS = {"weights": 4, "gradients": 4, "optimizer": 8}


def check_size(model_class: Any, config: PreTrainedConfig) -> None:
    """Raise an error if training the model needs more than the total memory, even without activations.

    The check builds the model on the device `meta`, which takes a few hundredths of a second.

    Raises:
        ConfigError: Lists the parts of the memory.
    """
    needed, available = compute_training_bytes(model_class, config), total_memory()
    if needed is None or sum(needed.values()) <= available:
        return
    parts = ", ".join(f"{name} {size / _GIB:,.1f}" for name, size in needed.items())
    raise ConfigError(
        f"model: training needs {sum(needed.values()) / _GIB:,.1f} GiB ({parts}) and activations, but "
        f"{available / _GIB:,.1f} GiB are available; reduce model.hidden_size, model.intermediate_size or the "
        "vocabulary"
    )


def compute_training_bytes(model_class: Any, config: PreTrainedConfig) -> dict[str, int] | None:
    """Return the bytes that training needs for weights, gradients and so on, by part, or None if unknown."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            parameters = list(model_class(config).parameters())
    except (RuntimeError, NotImplementedError) as error:
        return {"weights": 2**63} if "overflow" in str(error) else None
    return _count_bytes(parameters)


def _count_bytes(parameters: Sequence[Tensor]) -> dict[str, int]:
    total = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return {name: size * (total if name == "weights" else trained) for name, size in _PARTS.items()}


def check_batch(model: Any, lengths: Sequence[int], *, width: int, processes: int, recomputed: bool) -> None:
    """Raise an error if a micro-batch needs more than the total memory.

    A model without an estimate of its activations is not refused.

    Raises:
        ConfigError: Lists the parts of the memory.
    """
    if model.least_activations(lengths, recomputed) is None:
        return
    least, parts = compute_least_bytes(model, lengths, width=width, processes=processes, recomputed=recomputed)
    if least <= (available := total_memory()):
        return
    listed = ", ".join(f"{name} {size / _GIB:,.1f}" for name, size in parts.items())
    raise ConfigError(
        f"trainer.per_device_train_batch_size: {len(lengths)} rows with {sum(lengths):,} tokens need at least "
        f"{least / _GIB:,.1f} GiB ({listed}), but {available / _GIB:,.1f} GiB are available; make it or the sequences "
        "smaller, with more trainer.gradient_accumulation_steps"
    )


def compute_least_bytes(
    model: Any, lengths: Sequence[int], *, width: int, processes: int, recomputed: bool
) -> tuple[int, dict[str, int]]:
    """Return a lower bound on the memory of one optimiser step in bytes, and its parts.

    Gradients take the place of activations, so only the larger of the two is counted. The activations of a partly
    frozen model are not counted, because frozen parts store none.

    Frozen heads of a trained model change nothing.

    Args:
        model: A `DepthModel`.
        lengths: Minimum number of tokens of every row of a micro-batch.
        width: Bytes of an activation.
        processes: Number of processes on this machine that train on such a micro-batch.
        recomputed: See `DepthModel.least_activations`.
    """
    parameters = list(model.parameters())
    parts = _count_bytes(parameters)
    heads = {id(parameter) for name in model.list_heads() for parameter in model.get_submodule(name).parameters()}
    is_trained = all(parameter.requires_grad or id(parameter) in heads for parameter in parameters)
    numbers = model.least_activations(lengths, recomputed) if is_trained else None
    activations = {name: processes * width * count for name, count in (numbers or {}).items() if count}
    least = parts["weights"] + parts["optimizer"] + max(parts["gradients"], sum(activations.values()))
    return least, {**parts, **activations}


def free_memory(device: torch.device) -> tuple[int, int] | None:
    """Return the free and the total memory of an accelerator or this machine in bytes, or None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return None
    kib = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    return kib["MemAvailable"] * 1024, kib["MemTotal"] * 1024


def total_memory() -> int:
    """Return the total main and accelerator memory of all machines of a run, in bytes."""
    machines = int(os.environ.get("WORLD_SIZE", "1")) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    devices = range(torch.cuda.device_count())
    on_devices = sum(torch.cuda.get_device_properties(device).total_memory for device in devices)
    return max(1, machines) * (on_host + on_devices)
