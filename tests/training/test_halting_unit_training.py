"""A run with a halting unit of another package: it learns, resumes bit for bit, and holds a depth budget."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from adadepth.tasks.budgets import correct_depth
from tests.plugins_support import example_extensions
from tests.training.depth_correction_support import HELD, build_session, compute_mean_depth
from tests.training.support import build_tiny_config, build_tiny_trainer, clone_parameters, collect_losses

NAME = "albert.encoder.albert_layer.act.dense."
RUN = (
    "model.halting_unit=movement", "trainer.max_steps=4", "trainer.per_device_train_batch_size=4",
    "trainer.save_strategy=steps", "trainer.save_steps=1", "trainer.save_total_limit=null",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _install_extensions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with example_extensions(tmp_path_factory.mktemp("package")):
        yield


def test_a_run_learns_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = build_tiny_trainer(tmp_path, *RUN)
    before = {name: value.clone() for name, value in clone_parameters(whole).items() if name.startswith(NAME)}
    assert before.keys() == {NAME + "bias", NAME + "slope", NAME + "weights.weight"}
    whole.train()
    assert not [name for name, value in before.items() if torch.equal(clone_parameters(whole)[name], value)]
    resumed = build_tiny_trainer(tmp_path / "resumed", *RUN)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, value in clone_parameters(whole).items():
        assert torch.equal(value, clone_parameters(resumed)[name]), name
    assert collect_losses(whole) == collect_losses(resumed)


def test_a_budget_shifts_the_bias_of_the_unit(tmp_path: Path) -> None:
    trainer = build_tiny_trainer(tmp_path, *HELD, "model.halting_unit=movement:-0.5")
    unit = trainer.model.albert.encoder.albert_layer.act.dense
    torch.nn.init.normal_(unit.weights.weight, std=1.0)
    torch.nn.init.constant_(unit.bias, -6.0)
    settings = build_tiny_config(*HELD, "model.halting_unit=movement:-0.5", "budget.target=2").budget
    assert abs(compute_mean_depth(trainer) - 2) > 0.1
    assert correct_depth(settings, build_session(trainer))
    assert compute_mean_depth(trainer) == pytest.approx(2, rel=0.05)


SCRIPT = """
from torch import Tensor

import adadepth
from adadepth.halting.units import HaltingUnit, UnitMemory
from adadepth.run import main


@adadepth.register_halting_unit
class Constant(HaltingUnit):
    name = "constant"

    def forward(self, states: Tensor, memory: UnitMemory, step: int) -> tuple[Tensor, UnitMemory]:
        return self.bias.expand(states.shape[:-1]), ()


main()
"""


@pytest.mark.slow
def test_a_file_registers_a_unit_and_runs_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "constant_unit.py"
    file.write_text(SCRIPT)
    command = [
        sys.executable, str(file), "--config-name", "act_tiny", "model.halting_unit=constant", "trainer.max_steps=2",
        "trainer.warmup_steps=0", "trainer.eval_steps=2", "trainer.save_steps=2", "model.hidden_size=32",
        "model.embedding_size=16", "model.intermediate_size=64", "model.num_attention_heads=2",
        "baseline=none", f"output_dir={tmp_path / 'runs'}",
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, timeout=600)
    (run,) = tmp_path.glob("runs/act_tiny/*/")
    assert json.loads((run / "model" / "config.json").read_text())["halting_unit"] == "constant"
    assert json.loads((run / "run.json").read_text())["command"].startswith(f"python {file} --config-name act_tiny")
