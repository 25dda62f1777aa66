"""Every model with its parameters sharded by torch's FSDP2 on CPUs: the same losses and gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.processes_support import run_on_processes
from tests.training.sharded_trainers import train_two_steps
from tests.unit.models.every_model_support import BUILD, FURTHER


@pytest.mark.slow  # half a minute
@pytest.mark.parametrize("processes", [2, 4])
def test_sharded_models_have_the_losses_and_gradients_of_unsharded_ones(processes: int, tmp_path: Path) -> None:
    run_on_processes("sharded_processes", tmp_path, processes)
    differences = torch.load(tmp_path / "sharded.pt")
    assert set(differences) == {(name, by_block) for name in BUILD | FURTHER for by_block in (False, True)}
    for case, figures in differences.items():
        assert figures["sharded"] > 0, case
        assert figures["loss"] <= 1e-6, case
        assert figures["gradients"] <= 1e-6, case
    few, many = torch.load(tmp_path / "gathers.pt").values()
    assert many[1:] == few[1:] == [few[1]] * 2  # of 2 and of 6 loops; the first step sees which layers are repeated


@pytest.mark.slow  # two processes
def test_a_trainer_shards_parameters_gradients_and_optimizer_states(tmp_path: Path) -> None:
    run_on_processes("sharded_trainers", tmp_path)
    two = torch.load(tmp_path / "two.pt")
    assert two["shared"]
    total, local = two["numbers"]
    assert local == pytest.approx(total / 2, rel=0.05)
    trainer, one = train_two_steps(tmp_path / "one", "trainer.per_device_train_batch_size=8")
    logged = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert two["losses"] == pytest.approx(logged, rel=1e-5)
    for name, gradient in one.whole.items():
        torch.testing.assert_close(two["gradients"][name], gradient, rtol=1e-4, atol=1e-6)
