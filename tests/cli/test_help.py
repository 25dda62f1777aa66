"""The output of `--help` without a configuration, and a user's folder beside the shipped configurations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adadepth.cli.config_files import CONFIGS
from adadepth.cli.help import describe_topic
from adadepth.cli.keys import list_keys
from tests.cli.support import Command, Jobs, Refusal
from tests.configs.support import GROUPS, OPTIONS, ROOTS
from tests.marks_support import keep_one_quick


@pytest.fixture
def user_folder(tmp_path: Path) -> Path:
    """Write a folder with an experiment and an option to the working directory of the commands."""
    (tmp_path / "mine" / "dataset").mkdir(parents=True)
    (tmp_path / "mine" / "my_docs.yaml").write_text(
        "# My first try. It is small.\ndefaults: [act_tiny, override dataset: my_texts, _self_]\nname: my_docs\n"
    )
    (tmp_path / "mine" / "dataset" / "my_texts.yaml").write_text(
        "# My texts.\ndefaults: [python_docs]\nname: my_texts\n"
    )
    return tmp_path / "mine"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)], ids=str)
def test_the_overview_has_every_experiment_and_option(arguments: tuple[str, ...], command: Command) -> None:
    result = command(*arguments)
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    for root in ROOTS:
        (line,) = [line for line in lines if line.startswith(f"  {root} ")]
        comment = (CONFIGS / f"{root}.yaml").read_text().splitlines()[0].lstrip("# ")
        assert line.split(maxsplit=1)[1][:30] == comment[:30]
    words = set(result.out.replace(",", " ").split())
    assert {f"{group}:" for group in GROUPS - {"hydra"}} <= words
    assert {name for _, name in OPTIONS} <= words
    assert max(map(len, lines)) <= 145


def test_a_group_lists_its_options_and_keys(command: Command) -> None:
    out = command("--help", "trainer").out
    assert "  finetune_lamb               The fine-tuning recipe of Simoulin & Crabbé (2021): LAMB, four epochs" in out
    assert "  trainer.learning_rate                  peak learning rate; above 0" in out
    assert "model." not in out


def test_published_runs_are_one_option(command: Command) -> None:
    assert "  preset: none, paper, seed\n" in command("--help").out
    assert "  paper  All settings of the published run, for act_base, act_cola" in command("--help", "preset").out


def test_help_of_a_key_has_all_sentences(command: Command) -> None:
    assert (
        command("--help", "trainer.learning_rate").out == "trainer.learning_rate\n  peak learning rate; "
        "above 0.\n  default: 0.001\n"
    )
    out = " ".join(command("--help", "model.state_rule").out.split())
    assert "one of single, graves, accumulated, basic." in out
    assert "weighted sum of the outputs, halted states copied" in out
    assert out.endswith("default: single")


def test_help_of_a_key_distinguishes_its_kinds(command: Command) -> None:
    out = command("--help", "dataset.sequence_length").out
    assert "default: 384 (QuestionConfig)" in out
    assert "number of tokens of a window: the question and a part of its context" in out


@pytest.mark.slow
def test_every_key_has_help() -> None:
    assert [key for key in list_keys() if len(describe_topic(key, [CONFIGS])) <= len(key)] == []


def test_help_of_an_experiment_has_its_whole_comment(command: Command) -> None:
    assert "preset=paper is the published run" in command("--help", "act_tiny").out


def test_every_key_of_an_experiment_is_listed_with_its_value(command: Command) -> None:
    out = command("--config-name", "act_tiny", "model=albert_act_mini", "--help").out
    assert "  # peak learning rate; above 0\n" in out
    assert "  hidden_size: 192  # H" in out


def test_a_users_folder_is_listed_and_composed(user_folder: Path, command: Command, jobs: Jobs) -> None:
    arguments = ("--config-dir", "mine")
    out = command(*arguments, "--help").out
    assert "  my_docs                      My first try.\n" in out
    assert "my_texts, " in out
    assert "  my_texts              My texts.\n" in command(*arguments, "--help", "dataset").out
    command(*arguments, "--config-name", "my_docs", "model=albert_act_mini").checked()
    assert [(job.name, job.dataset.name) for job in jobs] == [("my_docs", "my_texts")]
    assert "(did you mean 'my_docs'?)" in command(*arguments, "--config-name", "my_doc").err
    assert "(did you mean 'my_texts'?)" in command(*arguments, "--config-name", "my_docs", "dataset=my_text").err


def test_a_users_configuration_can_have_a_published_run(user_folder: Path, command: Command, jobs: Jobs) -> None:
    (user_folder / "my_docs.yaml").write_text("defaults: [act_tiny, _self_]\nname: my_docs\n")
    (user_folder / "preset" / "paper").mkdir(parents=True)
    (user_folder / "preset" / "paper" / "my_docs.yaml").write_text("# @package _global_\ntrainer: {max_steps: 7}\n")
    command("--config-dir", "mine", "-cn", "my_docs", "preset=paper").checked()
    assert [job.trainer.max_steps for job in jobs] == [7]


@pytest.mark.parametrize("name", ["dataset/cola.yaml", "logger/mlflow.yaml"])
def test_a_users_file_must_not_have_the_name_of_a_shipped_one(name: str, user_folder: Path, refused: Refusal) -> None:
    (user_folder / name).parent.mkdir(exist_ok=True)
    (user_folder / name).write_text("defaults: [labelled]\n")
    message = refused("--config-dir", "mine", "--config-name", "my_docs")
    assert message == f"error: --config-dir mine: adadepth already has a configuration {name}; rename yours\n"


@pytest.mark.parametrize(
    "words", keep_one_quick(3, [["--help", "trainer"], ["--help"], ["--help", "mode"], ["--version"]]), ids=" ".join
)
def test_help_without_a_configuration_imports_no_slow_library(words: list[str]) -> None:
    code = (
        f"import sys; sys.argv[1:] = {words}\n"
        "from adadepth.run import main\n"
        "main()\n"
        "slow = {'hydra', 'omegaconf', 'numpy', 'torch', 'transformers', 'yaml', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported: {slow}' if slow else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
