"""What an epoch's incomplete last batch teaches does not depend on the number of processes."""

from typing import NamedTuple

import pytest
import torch

from tests.training.processes_support import on_two_processes
from tests.training.support import tiny_trainer
from tests.training.test_normalisation import LastGradients

PARTS = ("loss", "mlm_loss", "sop_loss", "ponder_loss")


class Case(NamedTuple):
    """How an update's four examples are read where there are two processes, and what else is set."""

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


def trained(folder, name, batch, accumulation):
    """Gradients of the last update of two epochs, and every line of the log."""
    case = CASES[name]
    trainer = tiny_trainer(
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


@pytest.mark.slow
def test_two_processes_end_an_epoch_as_one_does(tmp_path):
    on_two_processes("two_epoch_ends.py", tmp_path)
    two = torch.load(tmp_path / "two.pt", weights_only=False)
    for name, case in CASES.items():
        gradients, log = trained(tmp_path / f"one {name}", name, 4, 1)
        updates = case.examples // 4 if "left out" in name else -(-case.examples // 4)
        assert len(log) == len(two[name][1]) == 2 * updates, name
        for ours, theirs in zip(log, two[name][1], strict=True):
            for part in [*PARTS, "budget/measured"]:
                if part in ours:
                    assert theirs[part] == pytest.approx(ours[part], rel=1e-5), (name, part)
        for parameter, gradient in gradients.items():
            found = two[name][0][parameter]
            torch.testing.assert_close(found, gradient, atol=2e-6, rtol=1e-3, msg=f"{name} {parameter}")
