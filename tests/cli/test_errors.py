"""What a mistake on the command line or in a YAML file gets: one line, exit 2, nothing left behind, nothing run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adadepth.config import ExperimentConfig
from tests.cli.conftest import Result
from tests.plugins_support import package_on_path

TINY = ["--config-name", "act_tiny"]
MISTAKES = [
    (["seed=1"], "--config-name is missing; known configurations: act_addition, act_base, act_cola"),
    (["--help", "learning_rat"], "--help learning_rat: no such group, experiment or key"),
    (["--help", "trainer.learning_rat"], "experiment or key (did you mean 'trainer.learning_rate'?)"),
    (["--config-dir", "mine", "--config-name", "mine"], "--config-dir mine: no such folder"),
    (["--config-name", "act_tny"], "unknown configuration 'act_tny' (did you mean 'act_tiny'?); known: act_addition"),
    ([*TINY, "model=albert_act_tyny"], "model=albert_act_tyny: unknown option (did you mean 'albert_act_tiny'?)"),
    ([*TINY, "sweep=penalti"], "sweep=penalti: unknown option (did you mean 'penalty'?); known: glue, none, optuna"),
    ([*TINY, "model=null"], "Config group override must be a string"),
    ([*TINY, "trainer.lerning_rate=1"], "trainer.lerning_rate: unknown key (did you mean 'trainer.learning_rate'?)"),
    ([*TINY, "learning_rate=1"], "learning_rate: unknown key (did you mean 'trainer.learning_rate'?)"),
    ([*TINY, "modle=albert_act_mini"], "modle: unknown key (did you mean 'mode' or 'model'?); known: budget"),
    ([*TINY, "dataset.masking.probabilty=1"], "did you mean 'dataset.masking.probability'?); known in dataset.masking"),
    ([*TINY, "~trainer.foo"], "trainer.foo: unknown key"),
    ([*TINY, "+trainer.foo=1"], "trainer.foo: unknown key; leave out the +"),
    ([*TINY, "+seed=1"], "seed: there is such a key already; leave out the +"),
    ([*TINY, "hydra.sweeper.foo=1"], "hydra.sweeper.foo: unknown key"),
    ([*TINY, "trainer.max_steps=many"], "trainer.max_steps: value 'many' of type 'str' could not be converted"),
    ([*TINY, "seed=1.5"], "seed: value '1.5' of type 'float' could not be converted to Integer"),
    ([*TINY, "model.cap_remainder=refrence"], "one of [reference, penalty, forced] (did you mean 'reference'?)"),
    ([*TINY, "mode=trian"], "mode: invalid value 'trian', expected one of [train, evaluate, predict, probe, report]"),
    ([*TINY, "name=???"], "name: a value is missing"),
    ([*TINY, "trainer.max_steps=[1"], "cannot read the override 'trainer.max_steps=[1'"),
    ([*TINY, "model.act_penalty=-1"], "model.act_penalty=-1.0: must be at least 0"),
    ([*TINY, "-m", "seed=0,x"], "seed: value 'x' of type 'str'"),
    ([*TINY, "-m", "seed=0,-1"], "seed=-1: must be from 0"),
    ([*TINY, "-m", "seed=interval(0,1)"], "seed=interval(0,1): a grid has no intervals"),
    ([*TINY, "sweep=penalty", "model.act_epsilon=2"], "model.act_epsilon=2.0: must be above 0"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=str)
def test_a_mistake_gets_one_line(
    arguments: list[str], message: str, command: Callable[..., Result], jobs: list[ExperimentConfig], tmp_path: Path
) -> None:
    result = command(*arguments)
    assert result.status == 2
    assert result.err.startswith("error: ")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""
    assert jobs == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("group", ["adadepth.families", "adadepth.datasets"])
@pytest.mark.parametrize("arguments", [[], TINY], ids=["help", "run"])
def test_a_broken_package_gets_one_line(
    group: str, arguments: list[str], command: Callable[..., Result], tmp_path: Path
) -> None:
    with package_on_path(tmp_path, "half-done", {group: {"mine": "not_there:MINE"}}):
        result = command(*arguments)
    assert (result.status, result.out) == (2, "")
    assert "'mine' of the package half-done (not_there:MINE): cannot be imported (ModuleNotFoundError" in result.err
    assert result.err.count("\n") == 1


def test_every_mistake_is_told_at_once(command: Callable[..., Result]) -> None:
    result = command(*TINY, "seed=-1", "model.act_penalty=-1", "trainer.max_steps=0")
    assert [line[:7] for line in result.err.splitlines()] == ["error: "] * 3


@pytest.mark.parametrize(("text", "message"), [
    ("trainer: {lerning_rate: 1}", "in mine.yaml: trainer.lerning_rate: unknown key (did you mean"),
    ("trainer: {max_steps: many}", "in mine.yaml: trainer.max_steps: value 'many' of type 'str'"),
    ("model: {state_rule: grave}", "model.state_rule: invalid value 'grave', expected one of [single, graves"),
    ("epochs: 3", "in mine.yaml: epochs: unknown key"),
    ("trainer: [", "mine.yaml, line 3: expected the node content"),
    ("defaults: [act_tny]", "act_tny"),
    ("model: {act_penalty: -1}", "model.act_penalty=-1.0: must be at least 0"),
])  # fmt: skip
def test_a_mistake_in_a_users_own_yaml_gets_one_line(
    text: str, message: str, command: Callable[..., Result], jobs: list[ExperimentConfig], tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    head = "" if "defaults" in text else "defaults: [act_tiny, _self_]\n"
    (folder / "mine.yaml").write_text(f"{head}{text}\n")
    result = command("--config-dir", str(folder), "--config-name", "mine")
    assert result.status == 2
    assert result.err.startswith("error: ")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert jobs == []
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_processes_other_than_the_first_are_silent(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    result = command(*TINY, "seed=-1")
    assert (result.status, result.err) == (2, "")
