"""The Optuna sweep: its search space, its record of failures, and that a repeated command continues it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import adadepth.tasks
from adadepth.config import ExperimentConfig
from tests.cli.conftest import Result

pytest.importorskip("optuna")
SWEEP = ["--config-name", "act_tiny", "sweep=optuna_penalty"]


def points(jobs: list[ExperimentConfig]) -> list[tuple[float, float]]:
    return [(job.model.act_penalty, job.trainer.learning_rate) for job in jobs]  # type: ignore[attr-defined]


def test_trials_stay_inside_the_space_and_a_repetition_runs_only_what_is_missing(
    command: Callable[..., Result], jobs: list[ExperimentConfig], tmp_path: Path
) -> None:
    assert command(*SWEEP, "hydra.sweeper.n_trials=4").status == 0
    assert len(set(points(jobs))) == 4
    assert all(1e-4 <= penalty <= 1e-2 and 1e-4 <= rate <= 3e-3 for penalty, rate in points(jobs))
    assert [path.name for path in (tmp_path / "outputs" / "act_tiny" / "sweep").iterdir()] == ["optuna.log"]
    assert command(*SWEEP, "hydra.sweeper.n_trials=6").status == 0
    assert len(set(points(jobs))) == len(jobs) == 6
    assert command(*SWEEP, "hydra.sweeper.n_trials=6").status == 0
    assert len(jobs) == 6


def test_the_same_seed_searches_the_same_points(
    command: Callable[..., Result], jobs: list[ExperimentConfig], tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        command(*SWEEP, "hydra.sweeper.n_trials=3", f"hydra.sweeper.folder={tmp_path / folder}")
    assert points(jobs[:3]) == points(jobs[3:])


def test_every_form_of_a_parameter(command: Callable[..., Result], jobs: list[ExperimentConfig]) -> None:
    result = command(
        "--config-name", "act_tiny", "-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=8", "seed=range(0,10,5)",
        "model.state_rule=single,graves", "trainer.warmup_steps=int(interval(1,4))", "name=other",
    )  # fmt: skip
    assert result.status == 0, result.err
    assert {job.seed for job in jobs} == {0, 5}
    assert {str(job.model.state_rule) for job in jobs} == {"single", "graves"}  # type: ignore[attr-defined]
    assert {job.trainer.warmup_steps for job in jobs} <= {1.0, 2.0, 3.0, 4.0}
    assert {job.name for job in jobs} == {"other"}


def test_a_failing_trial_is_recorded_and_the_search_goes_on(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    outcomes = iter([RuntimeError("diverged"), float("nan"), None, 0.5])

    def task(config: ExperimentConfig) -> float | None:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(adadepth.tasks, "run", task, raising=False)
    result = command(*SWEEP, "hydra.sweeper.n_trials=4", f"hydra.sweeper.folder={tmp_path}")
    assert result.status == 0, result.err
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "optuna.log")))
    trials = optuna.load_study(storage=storage, study_name="sweep").trials
    assert [trial.state.name for trial in trials] == ["FAIL", "FAIL", "FAIL", "COMPLETE"]
    assert "diverged" in trials[0].user_attrs["failure"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["model.act_penalty=interval(-1,1)"], "model.act_penalty=-1.0: must be at least 0"),
    (["model.state_rule=single,grave"], "model.state_rule: invalid value 'grave'"),
    (["hydra.sweeper.params={}"], "the search space is empty"),
])  # fmt: skip
def test_a_wrong_space_fails_before_any_trial(
    arguments: list[str], message: str, command: Callable[..., Result], jobs: list[ExperimentConfig], tmp_path: Path
) -> None:
    result = command("--config-name", "act_tiny", "-m", "hydra/sweeper=optuna", *arguments)
    assert (result.status, jobs, list(tmp_path.iterdir())) == (2, [], [])
    assert message in result.err


def test_a_missing_optuna_is_told_in_one_line(
    command: Callable[..., Result], jobs: list[ExperimentConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = command(*SWEEP)
    assert (result.status, jobs) == (2, [])
    assert result.err == (
        "error: hydra/sweeper=optuna: the package optuna is missing, install it with pip install 'adadepth[optuna]'\n"
    )


def test_an_optuna_sweep_refuses_several_processes(
    command: Callable[..., Result], jobs: list[ExperimentConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert command(*SWEEP).status == 2
    assert jobs == []
