"""Which execution runs a batch, and when packing anew is worth its cost."""

from __future__ import annotations

import math

import torch

from adadepth.errors import ConfigError
from adadepth.families.albert_act.configuration import FREEZING_RULES, AlbertActConfig, check_execution
from adadepth.families.shared.albert.packed_attention import Kernel, choose_kernel

# Multiply-accumulates that one iteration of the whole batch must have for `auto` to run ragged, by kind of device: what
# has been measured (docs/ragged_execution.md). A device that has not been measured runs dense.
_BATCH_NEEDS = {"cpu": 5e7}
# Those that leaving tokens behind must save in the coming iteration, to be worth its gathers and launches. Without a
# measurement: a tenth of a millisecond of a large accelerator.
_REPACK_SAVES = {"cpu": 1e7}
_UNMEASURED_REPACK_SAVES = 1e10


def ragged_kernel(
    config: AlbertActConfig, positions: int, device: torch.device, dtype: torch.dtype, *, training: bool
) -> Kernel | None:
    """The attention kernel of a ragged execution, or None where the dense one runs.

    Args:
        config: With `execution`.
        positions: Of the batch, padding included.
        device: Of the batch.
        dtype: Of the weights.
        training: Whether attention weights are dropped.

    Raises:
        ConfigError: If `execution="ragged"` cannot be had with this state rule or attention implementation.
    """
    if config.execution == "dense":
        return None
    kernel = choose_kernel(config, device, dtype, training=training)
    if config.execution == "ragged":
        check_execution(config)
        if kernel is None and not torch.compiler.is_compiling():
            raise ConfigError(
                f"execution='ragged' needs attn_implementation eager, sdpa or flash_attention_*, "
                f"not {config._attn_implementation!r}"
            )
        return kernel
    pays = positions * update_work(config) >= _BATCH_NEEDS.get(device.type, math.inf)
    return kernel if pays and config.state_rule in FREEZING_RULES else None


def repacking_pays(config: AlbertActConfig, halted: int, device: torch.device) -> bool:
    """Whether to leave behind the `halted` tokens among the packed ones."""
    return halted * update_work(config) >= _REPACK_SAVES.get(device.type, _UNMEASURED_REPACK_SAVES)


def update_work(config: AlbertActConfig) -> int:
    """Multiply-accumulates of one token's update without its attention: 4 H^2 + 2 H F."""
    return 4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size
