"""Sweeps by W&B's agents: the sweep file, the command of an agent, and the results of a trial in W&B."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.support import Command, Jobs
from tests.wandb_support import read_wandb_records, read_wandb_summary

SWEEP = yaml.safe_load((Path(__file__).resolve().parents[2] / "docs" / "wandb_sweep.yaml").read_text())


def build_agent_command(**values: float) -> list[str]:
    """Return the arguments that an agent passes to the program, by W&B's own code."""
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    config = {"args": {name.replace("__", "."): {"value": value} for name, value in values.items()}}
    arguments = utils.create_sweep_command_args(config)["args"]
    words = utils.create_sweep_command(SWEEP["command"])
    filled = [word for part in words for word in (arguments if part == "${args}" else [part])]
    return filled[filled.index("${program}") + 1 :]


TRIAL = {"trainer__learning_rate": 0.002, "model__act_penalty": 0.0005}


def test_the_agents_arguments_are_overrides(command: Command, jobs: Jobs) -> None:
    arguments = build_agent_command(**TRIAL)
    assert "--trainer.learning_rate=0.002" in arguments, "W&B's default form"
    command(*arguments).checked()
    (config,) = jobs
    assert (config.trainer.learning_rate, config.model.act_penalty) == (0.002, 0.0005)  # type: ignore[attr-defined]
    assert (config.logger.report_to, config.logger.mode, config.optimise) == (["wandb"], "online", "eval/mlm_accuracy")


def test_every_parameter_of_the_sweep_is_a_key(command: Command, jobs: Jobs) -> None:
    arguments = [
        f"--{name}={spec.get('min', spec.get('values', [0])[0])}" for name, spec in SWEEP["parameters"].items()
    ]
    command("--config-name=act_tiny", "budget=none", *arguments).checked()
    assert len(jobs) == 1


def test_a_flag_of_hydra_is_no_override(command: Command) -> None:
    result = command("--config-name=act_tiny", "--cfg=job", "--trainer.max_steps=7")
    assert (result.status, yaml.safe_load(result.out)["trainer"]["max_steps"]) == (0, 7)
    wrong = command("--config-name=act_tiny", "--trainer.max_step=7")
    assert (wrong.status, wrong.out) == (2, "")
    assert "did you mean 'trainer.max_steps'" in wrong.err


@pytest.mark.slow
def test_a_trial_logs_its_objective_and_stores_the_requested_files(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "trial7")  # as the agent does
    overrides = ("debug=default", "logger.mode=offline", "logger.artifacts=[report,model]")
    command(*build_agent_command(**TRIAL), *overrides).checked()
    (folder,) = tmp_path.glob("outputs/act_tiny/*")
    assert [run.run_id for run in read_wandb_records(folder, "run")] == ["trial7"]
    final = json.loads((folder / "run.json").read_text())["final_metrics"]
    summary = read_wandb_summary(folder)
    assert summary[SWEEP["metric"]["name"]] == pytest.approx(final["eval/mlm_accuracy"])
    assert summary["halting/sentences/_type"] == summary["halting/classes/_type"] == "table-file"
    columns = {name if isinstance(value, float | int) else "" for name, value in summary.items() if name.count("/") < 2}
    assert len(columns) < 30, columns
    artifacts = {artifact.name: artifact for artifact in read_wandb_records(folder, "artifact")}
    files = {entry.path for entry in artifacts["act_tiny-model"].manifest.contents}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    (page,) = artifacts["act_tiny-report"].manifest.contents
    assert page.size == (folder / "report.html").stat().st_size, "the one that says how the run ended"
