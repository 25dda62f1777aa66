"""bf16 and fp16 against float32, for every family over 50 optimiser steps: differences below those between seeds."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest
import torch

from tests.unit.models.every_model_support import BUILD, FURTHER, build_training_batch

ALL = BUILD | FURTHER
STEPS, LAST, SEEDS = 50, 10, 4
LEARNING_RATE = 1e-3


class Figures(NamedTuple):
    """Results of a training run: mean loss of the last steps, and mean updates of a unit after them."""

    loss: float
    updates: float


@cache
def train(name: str, seed: int, dtype: torch.dtype, learning_rate: float = LEARNING_RATE) -> Figures:
    """Train a small model on one batch, from weights that a seed has changed by 5 %."""
    torch.manual_seed(seed)
    model = ALL[name]().train()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 0.05 * torch.randn(weight.shape, generator=generator))
    torch.manual_seed(seed)
    batch, losses = build_training_batch(name), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    autocast = torch.autocast("cpu", dtype, enabled=dtype != torch.float32)
    for step in range(STEPS):
        model.set_step(step, STEPS)
        with autocast:
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    model.eval()
    with torch.no_grad(), autocast:
        trace = getattr(model(**batch), "trace", None)
    updates = 0.0 if trace is None else float(trace.updates.float().mean())
    return Figures(sum(losses[-LAST:]) / LAST, updates)


def find_deviations(name: str, dtype: torch.dtype, learning_rate: float = LEARNING_RATE) -> list[str]:
    """Name the figures that the precision changes by more than the range over seeds in float32."""
    seeds = [train(name, seed, torch.float32) for seed in range(SEEDS)]
    other = train(name, 0, dtype, learning_rate)
    return [
        f"{field}: {value} in float32, {changed} in {dtype}, range {max(values) - min(values)}"
        for field, value, changed, values in zip(
            Figures._fields, seeds[0], other, zip(*seeds, strict=True), strict=True
        )
        if not abs(changed - value) <= max(values) - min(values)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", sorted(ALL))
def test_low_precision_changes_less_than_another_seed(name: str, dtype: torch.dtype) -> None:
    assert not find_deviations(name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["act classification", "ponder", "looped gate"])
def test_half_the_learning_rate_is_detected(name: str) -> None:
    assert find_deviations(name, torch.bfloat16, LEARNING_RATE / 2)
