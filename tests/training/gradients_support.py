"""Support for tests of update gradients, logged losses and budget states on one process or two."""

from __future__ import annotations

from typing import NamedTuple

from transformers import TrainerCallback

from adadepth.training.depth_budget import TrainingBudget
from tests.training.support import build_tiny_trainer, find_extension


class LastGradients(TrainerCallback):
    """Callback that records the gradients of the last update before the optimizer uses them up."""

    def __init__(self, gradients):
        self.gradients = gradients

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients |= {name: p.grad.detach().clone() for name, p in model.named_parameters()}


def run_first_update(folder, batch, accumulation, *overrides):
    """Return gradients, logged values and evaluation of one update over `batch * accumulation` examples."""
    trainer = build_tiny_trainer(
        folder,
        "trainer.max_steps=1",
        f"trainer.per_device_train_batch_size={batch}",
        f"trainer.gradient_accumulation_steps={accumulation}",
        "trainer.max_grad_norm=0",
        *overrides,
    )
    gradients = {}
    trainer.add_callback(LastGradients(gradients))
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "loss" in entry)
    return gradients, logged, trainer.evaluate()


BUDGET = ("model.act_penalty=0", "budget.target=2", "budget.hold=0", "budget.ramp=0", "trainer.max_steps=3")


def run_three_budget_updates(folder, batch, accumulation):
    """Return the controller's state after three updates, and the last update's gradients."""
    trainer = build_tiny_trainer(
        folder,
        f"trainer.per_device_train_batch_size={batch}",
        f"trainer.gradient_accumulation_steps={accumulation}",
        "trainer.max_grad_norm=0",
        *BUDGET,
    )
    gradients = {}
    trainer.add_callback(LastGradients(gradients))
    trainer.train()
    return find_extension(trainer, TrainingBudget).controller.state_dict()["state"], gradients


class Case(NamedTuple):
    """Split of an update's four examples over two processes, with the other settings of the run."""

    accumulation: int
    examples: int
    settings: tuple[str, ...] = ()


CASES = {
    "one example left": Case(1, 9),  # the second process has none
    "three examples left": Case(1, 7),
    "micro-batches of one": Case(2, 7),  # the second process has none in its second micro-batch
    "a budget": Case(2, 5, ("model.act_penalty=0", "budget.target=2", "budget.hold=0", "budget.ramp=0")),
    "left out": Case(1, 9, ("trainer.dataloader_drop_last=true",)),
}


def train_two_epochs(folder, name, batch, accumulation):
    """Return the gradients of the last update of two epochs, and every line of the log."""
    case = CASES[name]
    trainer = build_tiny_trainer(
        folder,
        "trainer.max_steps=-1",
        "trainer.num_train_epochs=2",
        "trainer.logging_steps=1",
        "trainer.max_grad_norm=0",
        f"trainer.per_device_train_batch_size={batch}",
        f"trainer.gradient_accumulation_steps={accumulation}",
        *case.settings,
    )
    trainer.data.train.keep(case.examples)
    gradients = {}
    trainer.add_callback(LastGradients(gradients))
    trainer.train()
    return gradients, [line for line in trainer.state.log_history if "loss" in line]
