"""Module run by several processes: two steps of a sharding trainer with micro-batches and clipped gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from tests.training.support import build_tiny_trainer

COMMON = ("trainer.max_steps=2", "trainer.max_grad_norm=0.1", "trainer.logging_steps=1")


class Gradients(TrainerCallback):
    """Callback that records the whole gradients of the last step, and which parameters and gradients were sharded."""

    def __init__(self) -> None:
        self.whole: dict[str, torch.Tensor] = {}
        self.shared: list[bool] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            self.shared += [isinstance(parameter, DTensor), isinstance(gradient, DTensor)]
            self.whole[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()


def train_two_steps(folder: Path, *overrides: str) -> tuple[Any, Gradients]:
    trainer, gradients = build_tiny_trainer(folder, *COMMON, *overrides), Gradients()
    trainer.add_callback(gradients)
    trainer.train()
    return trainer, gradients


def main(folder: Path) -> None:
    sharing = ("trainer.per_device_train_batch_size=2", "trainer.gradient_accumulation_steps=2")
    trainer, gradients = train_two_steps(folder / "two", "trainer.fsdp=true", *sharing)
    states = [value for state in trainer.optimizer.optimizer.state.values() for value in state.values() if value.ndim]
    result = {
        "shared": all(gradients.shared) and all(isinstance(value, DTensor) for value in states),
        "numbers": [sum(value.numel() for value in states), sum(value.to_local().numel() for value in states)],
        "gradients": gradients.whole,
        "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
    }
    if trainer.is_world_process_zero():
        torch.save(result, folder / "two.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
