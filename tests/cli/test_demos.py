"""Commands on the packaged demo models, which need no training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adadepth.cli.command_line import arguments
from adadepth.contrib.serve.serve import load_served_checkpoint
from adadepth.runs.directory import run_directory
from adadepth.runtime.files import describe_files
from tests.cli.support import Command, Refusal
from tests.configs.support import configured
from tests.scripts_support import ROOT, load_script

DEMOS = ROOT / "adadepth" / "demos"
FEW = ("debug=default", "dataset.max_evaluation_examples=32", "trainer.use_cpu=true")
ROOTS = {"hops": "act_hops", "loop": "loop_hops", "maze": "act_maze", "words": "act_wikitext2"}


@pytest.fixture(autouse=True)
def _check_unchanged() -> Iterator[None]:
    """Check that no command writes to a demo."""
    before = describe_files(DEMOS)
    yield
    assert describe_files(DEMOS) == before


@pytest.mark.parametrize("name", ROOTS)
def test_a_demo_selects_its_configuration(name: str) -> None:
    overrides = ["mode=evaluate", f"checkpoint=demo:{name}"]
    assert arguments(overrides)[:2] == ["--config-name", ROOTS[name]]
    assert arguments(["--config-name", "act_tiny", *overrides])[:2] == ["--config-name", "act_tiny"]
    assert arguments(["mode=serve", f"checkpoint=[demo:{name},outputs/a]"])[:2] == ["--config-name", ROOTS[name]]


@pytest.mark.slow
def test_exit_rules_are_compared_on_a_demo(command: Command, tmp_path: Path) -> None:
    result = command("mode=evaluate", "checkpoint=demo:hops", "exit_rules=[fixed:4,confidence:0.9]", *FEW).checked()
    assert "dataset, tokenizer, context, model as in demo:hops" in result.out
    (run,) = tmp_path.glob("outputs/act_hops/*")
    metrics = json.loads((run / "run.json").read_text(encoding="utf-8"))["final_metrics"]
    assert metrics["eval/score"] > 0.97
    assert (run / "exit_rules.json").is_file()


def test_an_evaluation_inherits_the_data_of_the_training() -> None:
    config = configured("act_wikitext2", "mode=evaluate", "checkpoint=demo:words")
    assert (config.dataset.name, config.dataset.sentence_order) == ("python_docs", False)
    assert config.tokenizer.path == str(DEMOS / "words" / "model")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hops", "maze", "loop", "words"])
def test_a_demo_has_the_metrics_of_its_training(name: str, command: Command, tmp_path: Path) -> None:
    command("mode=evaluate", f"checkpoint=demo:{name}", "trainer.use_cpu=true").checked()
    (run,) = tmp_path.glob("outputs/*/*")
    now, then = (
        json.loads((folder / "run.json").read_text(encoding="utf-8"))["final_metrics"] for folder in (run, DEMOS / name)
    )
    for key in {"eval/score", "eval/loss", "halting/all/mean"} & set(then):
        assert now[key] == pytest.approx(then[key], rel=0.05), key  # weights were rounded since


def test_a_text_is_predicted(command: Command, tmp_path: Path) -> None:
    symbols = "red >0 >1 >2 blue >4 >5 >6 green >8 >9 yellow >11 >12 >3 >7"
    command("mode=predict", "checkpoint=demo:hops", f"text={symbols}", "trainer.use_cpu=true").checked()
    (run,) = tmp_path.glob("outputs/act_hops/*")
    (prediction,) = json.loads((run / "texts.json").read_text(encoding="utf-8"))["texts"]
    assert [token["label"] for token in prediction["tokens"]][:4] == ["red"] * 4


def test_a_demo_below_output_dir_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an evaluation of a demo is not in the demo's directory, even for `output_dir=.` in a clone."""
    shutil.copytree(DEMOS, tmp_path / "package" / "demos")
    monkeypatch.setattr("adadepth.runtime.demos._DEMOS", tmp_path / "package" / "demos")
    config = configured("act_hops", "mode=evaluate", "checkpoint=demo:hops", f"output_dir={tmp_path}")
    assert run_directory(config).parent == tmp_path / "act_hops"


def test_the_page_shows_the_name_of_the_demo() -> None:
    config = configured("act_hops", "mode=serve", "checkpoint=demo:hops", "trainer.use_cpu=true")
    served = load_served_checkpoint(config)
    assert served.name == "demo:hops"
    assert served.command[-1] == "checkpoint=demo:hops"
    assert served.synthetic is not None
    assert list(served.synthetic.sets) == ["inside", "beyond"]


@pytest.mark.parametrize(
    "arguments", [("mode=serve",), ("--config-name", "act_hops", "mode=evaluate"), ("mode=predict", "text=a")]
)
def test_an_unknown_demo_is_a_one_line_error(arguments: tuple[str, ...], refused: Refusal) -> None:
    names = "demo:hops, demo:loop, demo:maze, demo:words"
    message = f"error: checkpoint=demo:hopps: must be one of {names} (did you mean 'demo:hops'?)\n"
    assert refused(*arguments, "checkpoint=demo:hopps") == message


@pytest.mark.slow
def test_the_quickest_demo_can_be_reproduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train the demo again: equal bits on the same machine and libraries, and a model as good on others."""
    script = load_script(".ci/demos.py", monkeypatch)
    script.export_demo(script.train_demo("hops", tmp_path / "runs"), tmp_path / "hops")
    before, after = (
        json.loads((run / "run.json").read_text(encoding="utf-8")) for run in (DEMOS / "hops", tmp_path / "hops")
    )
    stored, reproduced = (load_file(run / "model" / "model.safetensors") for run in (DEMOS / "hops", tmp_path / "hops"))
    assert {key: value.shape for key, value in stored.items()} == {
        key: value.shape for key, value in reproduced.items()
    }
    if not all(torch.equal(stored[key], reproduced[key]) for key in stored):
        for key, most in (("eval/score", 0.02), ("eval/beyond/score", 0.05), ("halting/all/mean", 0.3)):
            assert abs(before["final_metrics"][key] - after["final_metrics"][key]) < most, key
