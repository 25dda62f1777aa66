"""Whether a machine can hold a model while it is trained, said before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from adadepth.errors import ConfigError

_GIB = 2**30
# Bytes a number in float32: of all parameters their values, of those that train also a gradient and two moments.
_PARTS = {"weights": 4, "gradients": 4, "optimizer": 8}


def check_size(model_class: Any, config: PreTrainedConfig) -> None:
    """Refuse a model that cannot be trained even by all memory there is; activations come on top.

    The model is made without memory (on the device `meta`), which takes a few hundredths of a second.

    Raises:
        ConfigError: With the parts.
    """
    needed, found = needed_bytes(model_class, config), total_memory()
    if needed is None or sum(needed.values()) <= found:
        return
    parts = ", ".join(f"{name} {size / _GIB:,.1f}" for name, size in needed.items())
    raise ConfigError(
        f"model: training it needs {sum(needed.values()) / _GIB:,.1f} GiB ({parts}) and activations, here are "
        f"{found / _GIB:,.1f}; make model.hidden_size, model.intermediate_size or the vocabulary smaller"
    )


def needed_bytes(model_class: Any, config: PreTrainedConfig) -> dict[str, int] | None:
    """Bytes by part; None of a model that cannot be made without memory."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            parameters = list(model_class(config).parameters())
    except (RuntimeError, NotImplementedError) as error:
        return {"weights": 2**63} if "overflow" in str(error) else None
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    every = sum(each.numel() for each in parameters)
    return {name: size * (every if name == "weights" else trained) for name, size in _PARTS.items()}


def check_batch(model: Any, lengths: Sequence[int], *, width: int, processes: int, recomputed: bool) -> None:
    """Refuse a micro-batch that cannot be trained even by all memory there is; for the arguments see `least_bytes`.

    Of models that cannot say what it costs nothing is refused here.

    Raises:
        ConfigError: With the parts.
    """
    if model.least_activations(lengths, recomputed) is None:
        return
    least, parts = least_bytes(model, lengths, width=width, processes=processes, recomputed=recomputed)
    if least <= (found := total_memory()):
        return
    listed = ", ".join(f"{name} {size / _GIB:,.1f}" for name, size in parts.items())
    raise ConfigError(
        f"trainer.per_device_train_batch_size: {len(lengths)} rows with {sum(lengths):,} tokens need at least "
        f"{least / _GIB:,.1f} GiB ({listed}), here are {found / _GIB:,.1f}; make it or the sequences smaller, with "
        "more trainer.gradient_accumulation_steps"
    )


def least_bytes(
    model: Any, lengths: Sequence[int], *, width: int, processes: int, recomputed: bool
) -> tuple[int, dict[str, int]]:
    """What an update needs at the least, and its parts. Gradients come as activations go: the larger of them counts.

    Nothing is kept for a part that does not train, so the activations of a model that is frozen in part do not count.

    Args:
        model: A `DepthModel`, made already.
        lengths: Tokens of the rows of a micro-batch, at least.
        width: Bytes of an activation.
        processes: How many have such a micro-batch at once.
        recomputed: See `DepthModel.least_activations`.
    """
    parameters = list(model.parameters())
    trained = [each for each in parameters if each.requires_grad]
    counts = {name: sum(each.numel() for each in (parameters if name == "weights" else trained)) for name in _PARTS}
    own = {name: size * counts[name] for name, size in _PARTS.items()}
    kept: dict[str, int] = {}
    numbers = model.least_activations(lengths, recomputed) if len(trained) == len(parameters) else None
    if numbers is not None:
        kept = {name: processes * width * count for name, count in numbers.items() if count}
    least = own["weights"] + own["optimizer"] + max(own["gradients"], sum(kept.values()))
    return least, {**own, **kept}


def free_memory(device: torch.device) -> tuple[int, int] | None:
    """Bytes that are free and that there are, of an accelerator or of this machine; None: it does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return None
    kib = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    return kib["MemAvailable"] * 1024, kib["MemTotal"] * 1024


def total_memory() -> int:
    """Bytes of memory and of accelerators, of all machines of a run: they may share one model."""
    machines = int(os.environ.get("WORLD_SIZE", "1")) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    own = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    devices = range(torch.cuda.device_count())
    on_devices = sum(torch.cuda.get_device_properties(device).total_memory for device in devices)
    return max(1, machines) * (own + on_devices)
