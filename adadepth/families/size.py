"""Whether a machine can hold a model while it is trained, said before anything is allocated."""

from __future__ import annotations

import os
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


def total_memory() -> int:
    """Bytes of memory and of accelerators, of all machines of a run: they may share one model."""
    machines = int(os.environ.get("WORLD_SIZE", "1")) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    own = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    devices = range(torch.cuda.device_count())
    on_devices = sum(torch.cuda.get_device_properties(device).total_memory for device in devices)
    return max(1, machines) * (own + on_devices)
