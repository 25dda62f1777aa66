"""Supernet gates: the weights of the operations of a block, from unconstrained logits; all float32.

    w = softmax((a + g) / tau),    g = -log(-log U)

Jang et al. 2017 (arXiv 1611.01144), Maddison et al. 2017 (arXiv 1611.00712). Shape legend: N blocks, K operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adadepth.config.choices import TauSchedule
from adadepth.errors import ConfigError, nearest

SCHEDULES = tuple(map(str, TauSchedule))
_SMALLEST, _LARGEST = 1e-10, 1.0 - 1e-7  # of U: both logarithms stay finite in float32


def gate_temperature(step: int, steps: int, start: float, end: float, schedule: str) -> float:
    """Return the temperature of an optimiser step: exactly `start` at the first, exactly `end` at the last and after.

    With f the share of completed steps it is start^(1-f) end^f, or the mean of start and end with weight 1 - f
    (linear) or (1 + cos(pi f)) / 2 (cosine) on the start.

    Args:
        step: Number of the optimiser step, from 0.
        steps: Number of all optimiser steps.
        start: First temperature.
        end: Last temperature.
        schedule: Name of the schedule, one of `SCHEDULES`.

    Raises:
        ConfigError: If a temperature is not positive, or there is no such schedule.
    """
    for name, value in (("tau_start", start), ("tau_end", end)):
        if not 0.0 < value < math.inf:
            raise ConfigError(f"{name}={value} must be greater than 0")
    done = min(step / max(steps - 1, 1), 1.0)
    if schedule == "exponential":
        return float(start ** (1.0 - done) * end**done)
    if schedule not in SCHEDULES:
        raise ConfigError(
            f"tau_schedule={schedule!r} must be one of {', '.join(SCHEDULES)}{nearest(schedule, SCHEDULES)}"
        )
    weight = 1.0 - done if schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
    return weight * start + (1.0 - weight) * end


def gumbel_noise(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return standard Gumbel noise -log(-log U) on the device of the generator, float32."""
    uniform = torch.rand(tuple(shape), generator=generator, device=generator.device, dtype=torch.float32)
    return -(-uniform.clamp(_SMALLEST, _LARGEST).log()).log()


def gate_weights(
    logits: Tensor, temperature: float = 1.0, noise: Tensor | None = None, straight_through: bool = False
) -> Tensor:
    """Return the weight of every operation, float32, (N, K); each row sums to one.

    Args:
        logits: Logits a, (N, K), any floating point type.
        temperature: Temperature tau > 0.
        noise: Gumbel noise g, (N, K); None for none.
        straight_through: Whether values are one-hot at the largest weight, with the gradient of the weights.
    """
    assert temperature > 0.0
    scores = logits.float() if noise is None else logits.float() + noise
    soft = (scores / temperature).softmax(dim=-1)
    if not straight_through:
        return soft
    return torch.zeros_like(soft).scatter(-1, soft.argmax(dim=-1, keepdim=True), 1.0) + (soft - soft.detach())


def sample_path(logits: Tensor, generator: torch.Generator) -> list[int]:
    """Sample one operation per block from softmax(a): the largest of a + g (the Gumbel-max trick)."""
    path: list[int] = (logits.detach().float() + gumbel_noise(logits.shape, generator)).argmax(dim=-1).tolist()
    return path
