"""A package with a family, a dataset, a scorer, a training regime and a report section, which adadepth does not know.

Its data also train a family of another package. Everything that a run can be works with them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.marks_support import keep_one_quick
from tests.pages_support import check_costs
from tests.plugins_support import install_package
from tests.runs_support import execute_run, read_json, read_logged
from tests.toy_support import execute, install_toy_family
from tests.training.support import mark_interrupted

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = REPOSITORY / "examples" / "plugin"
ROOT = ("--config-name", "brackets", "model=router_mini")
DATA = ("dataset.train_examples=640", "dataset.max_evaluation_examples=64", "trainer.disable_tqdm=true")
SMALL = (
    *DATA, "model.num_hidden_layers=4", "model.hidden_size=32", "model.embedding_size=16",
    "model.intermediate_size=32", "trainer.per_device_train_batch_size=16", "trainer.gradient_accumulation_steps=2",
    "trainer.max_steps=8", "trainer.eval_steps=4", "trainer.save_steps=4", "trainer.save_total_limit=null",
    "trainer.logging_steps=1", "dataset.advance_at=0.3", "model.update_price=0.1",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _install_plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    site = tmp_path_factory.mktemp("site")
    with (
        install_package(site, project["name"], project["entry-points"], PLUGIN),
        install_toy_family(tmp_path_factory.mktemp("router")),
    ):
        yield


COUNTER = ("--config-name", "brackets", "model=counter_mini")
FEW = (
    *DATA, "model.hidden_size=16", "model.max_rounds=4", "trainer.per_device_train_batch_size=16",
    "trainer.max_steps=8", "trainer.eval_steps=4", "trainer.save_steps=4", "trainer.save_total_limit=null",
    "trainer.logging_steps=1", "budget=depth", "budget.target=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run with every step saved."""
    return execute_run(tmp_path_factory.mktemp("trained"), *ROOT, *SMALL)


@pytest.mark.slow
def test_the_scorer_and_the_regime_of_the_package_take_part(trained_run: Path) -> None:
    metrics = read_json(trained_run / "run.json")["final_metrics"]
    assert 0 <= metrics["eval/whole_accuracy"] <= metrics["eval/token_accuracy"] <= 1
    losses = [read_logged(trained_run, f"train/{name}") for name in ("loss", "task_loss", "router_loss", "deep_loss")]
    for total, *parts in zip(*losses, strict=True):
        assert total == pytest.approx(sum(parts), abs=2e-4)
    assert (
        read_logged(trained_run, "train/stressed_depth")[-1]
        == read_json(trained_run / "brackets.json")["reached"][-1][1]
        > 1
    )


@pytest.mark.slow
def test_compute_is_measured_and_the_section_is_in_the_report(trained_run: Path, tmp_path: Path) -> None:
    check_costs(trained_run)
    assert 0 < read_json(trained_run / "halting.json")["cost"]["adaptive_over_full"] < 1
    page = (trained_run / "report.html").read_text(encoding="utf-8")
    assert page.index("Depths of brackets") < page.index("Losses")
    assert "brackets.json" in page.partition("Written by adadepth from")[2], "the file is named among those read"
    assert "Tokens left alone" in page, "the family's section is there, too"
    assert (trained_run / "tables" / "brackets.csv").is_file()
    damaged = shutil.copytree(trained_run, tmp_path / "damaged")
    (damaged / "brackets.json").write_text('{"reached": 7}', encoding="utf-8")
    assert execute("mode=report", f"run={damaged}") == 0
    assert "Depths of brackets" not in (damaged / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_interrupted_run_resumes_bit_for_bit(trained_run: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "brackets" / trained_run.name
    shutil.copytree(trained_run, stopped)
    shutil.rmtree(stopped / "model")
    shutil.rmtree(stopped / "checkpoints" / "checkpoint-8")
    assert execute(*ROOT, *SMALL, f"resume={mark_interrupted(stopped)}") == 0
    weights = [path / "model" / "model.safetensors" for path in (trained_run, stopped)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert read_logged(stopped, "train/stressed_depth")[-4:] == read_logged(trained_run, "train/stressed_depth")[-4:]
    state = json.loads((stopped / "checkpoints" / "checkpoint-4" / "brackets.json").read_text(encoding="utf-8"))
    assert read_json(stopped / "brackets.json")["reached"][: len(state["reached"])] == state["reached"]


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_under_exit_rules_and_depth_targets(trained_run: Path, tmp_path: Path) -> None:
    rules = "exit_rules=[fixed:1,fixed:2]"
    settings = ("mode=evaluate", f"checkpoint={trained_run}", rules, "budget.targets=[2]")
    directory = execute_run(tmp_path, *ROOT, *DATA, *settings)
    (row,) = [row for row in read_json(directory / "budgets.json")["rows"] if row["target"] == 2]
    assert row["mean"] == pytest.approx(2, rel=0.15)
    assert "nested" in read_json(directory / "exit_rules.json")["sets"]
    assert "eval/whole_accuracy" in read_json(directory / "run.json")["final_metrics"]


def test_the_family_of_the_package_is_trained_measured_reported_and_resumed(tmp_path: Path) -> None:
    run = execute_run(tmp_path / "whole", *COUNTER, *FEW)
    check_costs(run)
    assert (run / "report.html").read_text(encoding="utf-8").count("counter") > 0
    stopped = tmp_path / "stopped" / "brackets" / run.name
    shutil.copytree(run, stopped)
    shutil.rmtree(stopped / "model")
    shutil.rmtree(stopped / "checkpoints" / "checkpoint-8")
    assert execute(*COUNTER, *FEW, f"resume={mark_interrupted(stopped)}") == 0
    weights = [path / "model" / "model.safetensors" for path in (run, stopped)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
def test_a_budget_holds_and_fits_the_family_of_the_package(tmp_path: Path) -> None:
    steps = ("trainer.max_steps=150", "trainer.eval_steps=150", "trainer.save_steps=150", "trainer.logging_steps=50")
    directory = execute_run(tmp_path, *COUNTER, *FEW, *steps, "budget.gain=10", "budget.hold=0", "budget.ramp=0.2")
    assert read_logged(directory, "budget/measured")[-1] == pytest.approx(2, abs=0.4)
    settings = ("mode=evaluate", f"checkpoint={directory}", "budget.targets=[1]")
    evaluation = execute_run(tmp_path / "set", *COUNTER, *DATA, *settings)
    (row,) = [row for row in read_json(evaluation / "budgets.json")["rows"] if row["target"] == 1]
    assert row["mean"] == pytest.approx(1, rel=0.3)
    assert "eval/whole_accuracy" in read_json(evaluation / "run.json")["final_metrics"]


def test_help_lists_the_package(capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(*ROOT, "--help") == 0
    printed = capfd.readouterr().out
    assert "nested_brackets" in printed
    assert "deepest: 4  # most brackets that are open at once; at least 1" in printed
    assert "counter_mini" in printed
    assert "update_price: 0.0  # what an update of a token costs in the loss; at least 0" in printed


@pytest.mark.parametrize(("arguments", "message"), keep_one_quick(3, [
    (("dataset.deepest=9",), "dataset.deepest=9: must be at most dataset.pairs=8"),
    (("dataset.pairs=20",), "dataset.sequence_length=16: there are 40 brackets"),
    (("dataset.stres=0",), "dataset.stres: unknown key (did you mean 'dataset.stress'"),
    (("optimise=eval/hole_accuracy",), "unknown evaluation metric (did you mean 'whole_accuracy'?)"),
    (("task=pretrain",), "dataset=brackets: task=pretrain reads a corpus"),
    (("model=ponder_albert_mini",),
     "labels symbols of its own; use albert_act, early_exit, looped, routed, counter or router"),
]))  # fmt: skip
def test_a_mistake_is_a_one_line_error(
    arguments: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert execute(*ROOT, *arguments, f"output_dir={tmp_path}") == 2
    assert message in capfd.readouterr().err


def test_adadepth_does_not_mention_the_package() -> None:
    search = subprocess.run(
        ["git", "grep", "-il", "bracketsconfig\\|adadepth_brackets\\|deepening", "--", "adadepth", "configs"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert search.stdout == ""
