"""Gates: which operation a block of a supernet runs, from unconstrained logits; all float32.

    w = softmax((a + g) / tau),    g = -log(-log U)

Jang et al. 2017 (arXiv 1611.01144), Maddison et al. 2017 (arXiv 1611.00712). Shape legend: N blocks, K operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adadepth.errors import ConfigError, nearest
from adadepth.settings.choices import TauSchedule

SCHEDULES = tuple(map(str, TauSchedule))
_SMALLEST, _LARGEST = 1e-10, 1.0 - 1e-7  # of U: both logarithms stay finite in float32


def gate_temperature(step: int, steps: int, start: float, end: float, schedule: str) -> float:
    """The temperature of an update: exactly `start` at the first, exactly `end` at the last and after.

    With f the share of the updates that lies behind: start^(1-f) end^f, or the mean of start and end with weight 1 - f
    (linear) or (1 + cos(pi f)) / 2 (cosine) on the start.

    Args:
        step: The update, from 0.
        steps: How many there will be.
        start: First temperature.
        end: Last one.
        schedule: One of `SCHEDULES`.

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
    left = 1.0 - done if schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
    return left * start + (1.0 - left) * end


def gumbel_noise(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Standard Gumbel noise -log(-log U) of this shape on the generator's device, float32."""
    uniform = torch.rand(tuple(shape), generator=generator, device=generator.device, dtype=torch.float32)
    return -(-uniform.clamp(_SMALLEST, _LARGEST).log()).log()


def gate_weights(
    logits: Tensor, temperature: float = 1.0, noise: Tensor | None = None, straight_through: bool = False
) -> Tensor:
    """The weight of every operation, float32, (N, K); each row sums to one.

    Args:
        logits: a, (N, K), any floating point type.
        temperature: tau > 0.
        noise: g, (N, K); None for none.
        straight_through: One-hot values at the largest weight, with the gradient of the weights.
    """
    assert temperature > 0.0
    scores = logits.float() if noise is None else logits.float() + noise
    soft = (scores / temperature).softmax(dim=-1)
    if not straight_through:
        return soft
    return torch.zeros_like(soft).scatter(-1, soft.argmax(dim=-1, keepdim=True), 1.0) + (soft - soft.detach())


def sample_path(logits: Tensor, generator: torch.Generator) -> list[int]:
    """One operation a block, drawn from softmax(a): the largest of a + g (the Gumbel-max trick)."""
    drawn: list[int] = (logits.detach().float() + gumbel_noise(logits.shape, generator)).argmax(dim=-1).tolist()
    return drawn
