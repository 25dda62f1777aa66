"""Whether a model can be held at all, found out before anything is allocated."""

from __future__ import annotations

import os
from typing import Any

import torch

from adadepth.errors import ConfigError

_BYTES = 4  # weights are made in fp32


def check_memory(model_class: Any, config: Any) -> None:
    """Refuse a model whose weights alone are larger than the machine's memory; without them, it takes milliseconds.

    Linux promises memory that there is not, and ends the process that uses it.

    Raises:
        ConfigError: With the size, the largest parts, and what there is.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            sizes = {name: weight.numel() * _BYTES for name, weight in model_class(config).named_parameters()}
    except RuntimeError as error:
        raise ConfigError(f"model.name={config.model_type}: cannot be made ({str(error).splitlines()[0]})") from error
    needed, there = sum(sizes.values()), _memory()
    if needed > there:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:2]
        parts = ", ".join(f"{name} {_gib(sizes[name])}" for name in largest)
        raise ConfigError(
            f"model.name={config.model_type}: its weights take {_gib(needed)} ({parts}), "
            f"and this machine has {_gib(there)}"
        )


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
