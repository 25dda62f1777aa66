"""Gates of the supernet: weights of the operations in every block, computed in float32 from unconstrained logits.

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
    """Return the gate temperature of an optimiser step, between `start` at the first and `end` at the last step.

    Let f be the share of completed steps. The exponential schedule is start^(1-f) end^f. The other schedules are a
    weighted mean of start and end. The weight of the start is 1 - f (linear) or (1 + cos(pi f)) / 2 (cosine).

    Args:
        step: Number of the optimiser step, counted from 0.
        steps: Total number of optimiser steps.
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
    """Draw standard Gumbel noise -log(-log U), float32, on the device of the generator."""
    uniform = torch.rand(tuple(shape), generator=generator, device=generator.device, dtype=torch.float32)
    return -(-uniform.clamp(_SMALLEST, _LARGEST).log()).log()


def gate_weights(
    logits: Tensor, temperature: float = 1.0, noise: Tensor | None = None, straight_through: bool = False
) -> Tensor:
    """Return the weight of every operation in every block, float32, (N, K). Each row sums to one.

    Args:
        logits: Logits a of any floating-point dtype, (N, K).
        temperature: Temperature tau > 0.
        noise: Gumbel noise g, (N, K), or None for no noise.
        straight_through: Whether to return one-hot values at the largest weight, with the gradient of the soft weights.
    """
    assert temperature > 0.0
    scores = logits.float() if noise is None else logits.float() + noise
    soft = (scores / temperature).softmax(dim=-1)
    if not straight_through:
        return soft
    return torch.zeros_like(soft).scatter(-1, soft.argmax(dim=-1, keepdim=True), 1.0) + (soft - soft.detach())


def sample_path(logits: Tensor, generator: torch.Generator) -> list[int]:
    """Sample one operation per block from softmax(a), as the argmax of a + g with Gumbel noise g."""
    path: list[int] = (logits.detach().float() + gumbel_noise(logits.shape, generator)).argmax(dim=-1).tolist()
    return path
