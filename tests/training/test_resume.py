"""A resumed run is the run that was never stopped, bit for bit."""

import pytest
import torch

from adadepth.training.budget import TrainingBudget
from adadepth.training.checkpoints import complete_checkpoints
from tests.training.support import extension, tiny_trainer

STEPS = 12


def parameters(trainer):
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def losses(trainer):
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_resume_is_bit_exact_mid_epoch_and_at_its_end(tmp_path, workers, accumulation):
    overrides = (
        f"trainer.max_steps={STEPS}",
        f"trainer.gradient_accumulation_steps={accumulation}",
        f"runtime.num_workers={workers}",
        "trainer.per_device_train_batch_size=4",
        "trainer.save_strategy=steps",
        "trainer.save_steps=1",
        "trainer.save_total_limit=null",
        # Dropout draws from the global generators, so their state must come back too.
        "model.hidden_dropout_prob=0.1",
    )
    whole = tiny_trainer(tmp_path, *overrides)
    whole.train()
    updates_per_epoch = len(whole.get_train_dataloader()) // accumulation
    boundary, middle = updates_per_epoch, updates_per_epoch + 1
    assert middle < STEPS, f"an epoch has {updates_per_epoch} updates: too long for this test"
    for step in (boundary, middle):
        resumed = tiny_trainer(tmp_path / f"resumed-{step}", *overrides)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        for name, value in parameters(whole).items():
            assert torch.equal(value, parameters(resumed)[name]), f"{name} after resuming at step {step}"
        assert losses(whole) == losses(resumed)
        assert _equal(whole.optimizer.state_dict()["state"], resumed.optimizer.state_dict()["state"])
        assert whole.lr_scheduler.state_dict()["last_epoch"] == resumed.lr_scheduler.state_dict()["last_epoch"]


HELD = (
    f"trainer.max_steps={STEPS}",
    "trainer.save_strategy=steps",
    "trainer.save_steps=3",
    "trainer.save_total_limit=null",
    "trainer.per_device_train_batch_size=4",
    "trainer.logging_steps=1",
    "model.act_penalty=0",
    "model.state_rule=graves",
    "budget.target=2",
    "budget.grow=0.3",
    "budget.hold=0.1",
    "budget.ramp=0.3",
)


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A whole run under a budget, and the folder of its checkpoints."""
    folder = tmp_path_factory.mktemp("held")
    trainer = tiny_trainer(folder, *HELD)
    trainer.train()
    return trainer, folder


@pytest.mark.parametrize("at", [3, 6, 9], ids=["grows", "falls", "stays"])
def test_a_budget_goes_on_bit_for_bit(tmp_path, at, held):
    """Killed while depth grows, in the ramp and after it: weights, price and depth are those of the whole run."""
    whole, folder = held
    resumed = tiny_trainer(tmp_path, *HELD)
    resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{at}"))
    for name, value in parameters(whole).items():
        assert torch.equal(value, parameters(resumed)[name]), name
    assert (
        extension(whole, TrainingBudget).controller.state_dict()
        == extension(resumed, TrainingBudget).controller.state_dict()
    )

    def logged(trainer):
        return [
            {name: value for name, value in entry.items() if name.startswith("budget") or name in ("step", "loss")}
            for entry in trainer.state.log_history
            if entry["step"] > at and "loss" in entry
        ]

    assert logged(whole) == logged(resumed)
    assert {"budget/target", "budget/measured", "budget/multiplier", "budget_loss"} <= logged(whole)[0].keys()


def _equal(left, right):
    return (
        all(
            torch.equal(torch.as_tensor(left[key][name]), torch.as_tensor(right[key][name]))
            for key in left
            for name in left[key]
        )
        and left.keys() == right.keys()
    )


def test_a_half_written_checkpoint_is_passed_over(tmp_path):
    trainer = tiny_trainer(tmp_path, "trainer.max_steps=3", "trainer.save_strategy=steps", "trainer.save_steps=1")
    trainer.train()
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-3"]
    state = tmp_path / "checkpoint-3" / "trainer_state.json"
    state.write_text(state.read_text()[:50])
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["checkpoint-2"]


def test_two_runs_of_one_seed_are_equal_and_other_seeds_differ(tmp_path):
    runs = []
    for number, seed in enumerate((0, 0, 1)):
        trainer = tiny_trainer(tmp_path / str(number), "trainer.max_steps=2", f"seed={seed}")
        trainer.train()
        runs.append(parameters(trainer))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert not all(torch.equal(runs[0][name], runs[2][name]) for name in runs[0])
