"""The Optuna sweep: its search space, its record of failures, and its continuation by repeating the command."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import adadepth.tasks
from adadepth.config import ExperimentConfig
from tests.cli.support import Command, Jobs, Refusal
from tests.marks_support import keep_one_quick

pytest.importorskip("optuna")
SWEEP = ["--config-name", "act_tiny", "sweep=optuna_penalty"]


def list_points(jobs: Jobs) -> list[tuple[float, float]]:
    return [(job.model.act_penalty, job.trainer.learning_rate) for job in jobs]  # type: ignore[attr-defined]


def test_trials_stay_inside_the_space_and_a_repetition_runs_only_what_is_missing(
    command: Command, jobs: Jobs, tmp_path: Path
) -> None:
    command(*SWEEP, "hydra.sweeper.n_trials=4").checked()
    assert len(set(list_points(jobs))) == 4
    assert all(1e-4 <= penalty <= 1e-2 and 1e-4 <= rate <= 3e-3 for penalty, rate in list_points(jobs))
    assert [path.name for path in (tmp_path / "outputs" / "act_tiny" / "sweep").iterdir()] == ["optuna.log"]
    command(*SWEEP, "hydra.sweeper.n_trials=6").checked()
    assert len(set(list_points(jobs))) == len(jobs) == 6
    command(*SWEEP, "hydra.sweeper.n_trials=6").checked()
    assert len(jobs) == 6


@pytest.mark.slow
def test_the_same_seed_searches_the_same_points(command: Command, jobs: Jobs, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        command(*SWEEP, "hydra.sweeper.n_trials=3", f"hydra.sweeper.folder={tmp_path / 'outputs' / folder}")
    assert list_points(jobs[:3]) == list_points(jobs[3:])


@pytest.mark.slow
def test_every_form_of_a_parameter_is_searched(command: Command, jobs: Jobs) -> None:
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
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    command(*SWEEP, "hydra.sweeper.n_trials=4", f"hydra.sweeper.folder={tmp_path}").checked()
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "optuna.log")))
    trials = optuna.load_study(storage=storage, study_name="sweep").trials
    assert [trial.state.name for trial in trials] == ["FAIL", "FAIL", "FAIL", "COMPLETE"]
    assert "diverged" in trials[0].user_attrs["failure"]


@pytest.mark.parametrize(("optimise", "direction"), keep_one_quick(3, [
    ("eval/mlm_accuracy", "MAXIMIZE"), ("eval/mlm_loss", "MINIMIZE"), ("cost/adaptive_over_full", "MINIMIZE"),
]))  # fmt: skip
def test_the_metric_decides_the_direction(
    optimise: str, direction: str, command: Command, jobs: Jobs, tmp_path: Path
) -> None:
    """Check for hydra-ecosystem/hydra#2047: a search minimised whatever it was given, an accuracy too."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    sweep = (*SWEEP, f"optimise={optimise}", "hydra.sweeper.n_trials=1", f"hydra.sweeper.folder={tmp_path}")
    command(*sweep).checked()
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "optuna.log")))
    assert optuna.load_study(storage=storage, study_name="sweep").direction.name == direction
    other = "eval/mlm_loss" if direction == "MAXIMIZE" else "eval/mlm_accuracy"
    result = command(*sweep, f"optimise={other}")
    assert (result.status, len(jobs)) == (2, 1)
    assert f"its trials {direction.lower()} the metric" in result.err


@pytest.mark.parametrize(("arguments", "message"), keep_one_quick(3, [
    (["seed=1,2", "optimise=eval/loss", "hydra.sweeper.direction=maximize"], "eval/loss is better if lower"),
    (["seed=1,2", "optimise=eval/mlm_accuracy", "hydra.sweeper.direction=minimize"], "is better if higher"),
    (["model.act_penalty=interval(-1,1)"], "error: model.act_penalty=-1.0: "),
    (["model.state_rule=single,grave"], "model.state_rule: invalid value 'grave'"),
    (["hydra.sweeper.params={}"], "the search space is empty"),
    (["seed=range(0)"], "error: seed=range(0): "),
    (["seed=range(0,99999999)", "hydra.sweeper.n_jobs=0"], "error: hydra.sweeper.n_jobs=0: "),
    (["hydra.sweeper.n_trials=many"], "hydra.sweeper.n_trials: value 'many'"),
]))  # fmt: skip
def test_a_wrong_space_fails_before_any_trial(arguments: list[str], message: str, refused: Refusal) -> None:
    assert message in refused("--config-name", "act_tiny", "-m", "hydra/sweeper=optuna", *arguments)


def test_a_pickled_record_is_not_unpickled(refused: Refusal, tmp_path: Path) -> None:
    class Planted:
        def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
            return Path.touch, (tmp_path / "planted",)

    folder = tmp_path / "outputs" / "act_tiny" / "sweep"
    folder.mkdir(parents=True)
    (folder / "optuna.log").write_bytes(pickle.dumps(Planted()) + b"\n{}\n")
    assert "optuna.log: not a record of a study" in refused(*SWEEP)


def test_a_missing_optuna_is_a_one_line_error(refused: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert refused(*SWEEP) == (
        "error: hydra/sweeper=optuna: the package optuna is missing; install it with pip install 'adadepth[optuna]'\n"
    )


def test_an_optuna_sweep_refuses_several_processes(refused: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    group = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in group.items():
        monkeypatch.setenv(name, value)
    assert "an Optuna sweep cannot run under torchrun" in refused(*SWEEP, lines=4)
