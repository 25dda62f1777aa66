"""Runs with a step loss of another package: 20 optimiser steps of a command, and a resume bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adadepth import EarlyExitForCausalLM
from tests.plugins_support import example_extensions
from tests.runs_support import execute_run, read_logged
from tests.toy_support import execute
from tests.training.support import assert_same_end, copy_interrupted_run

STEPS = (
    "trainer.max_steps=20", "trainer.save_strategy=steps", "trainer.save_steps=10", "trainer.eval_strategy=no",
    "trainer.load_best_model_at_end=false", "trainer.save_total_limit=null", "trainer.disable_tqdm=true",
    "trainer.logging_steps=1", "trainer.time_budget_minutes=null",
)  # fmt: skip
COMMANDS = {
    "early_exit": ("--config-name", "exit_tiny", "debug=default", "model.exit_weights=competence:0.5"),
    "looped": ("--config-name", "loop_tiny", "debug=default", "model.objective=competence:0.5"),
}


@pytest.fixture(autouse=True)
def _install_extensions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with example_extensions(tmp_path_factory.mktemp("package")):
        yield


@pytest.mark.parametrize("family", COMMANDS)
def test_a_command_trains_with_the_loss_and_resumes_bit_for_bit(family: str, tmp_path: Path) -> None:
    whole = execute_run(tmp_path / "whole", *COMMANDS[family], *STEPS)
    losses = read_logged(whole, "train/loss")
    assert len(losses) == 20
    assert sum(losses[-5:]) < sum(losses[:5])
    stopped = copy_interrupted_run(10, whole, tmp_path / "stopped")
    assert execute(*COMMANDS[family], *STEPS, f"resume={stopped}") == 0
    assert_same_end(stopped, whole)
    if family == "early_exit":
        assert EarlyExitForCausalLM.from_pretrained(whole / "model").config.exit_weights == "competence:0.5"
