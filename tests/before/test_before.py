"""What was trained by earlier code is loaded, evaluated and resumed as it was then."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import adadepth
from adadepth import tasks
from adadepth.config.declaration import shapes
from adadepth.config.fingerprint import WRITTEN_OUT
from adadepth.metrics.metric_names import metric_name
from adadepth.models.build import load_model
from adadepth.models.folder import read_config
from adadepth.runs.inheritance import load_run_settings
from tests.before.runs import FIRST_RUNS, RUNS, list_evaluation_overrides
from tests.configs.support import configured
from tests.marks_support import mostly_slow

HERE = Path(__file__).resolve().parent
MODELS = sorted(path for path in HERE.glob("*/finished/*") if (path / "config.json").exists())
# What the clock says; and what another name says now, see CHANGELOG.md.
TIMED = ("runtime", "per_second", "cost/speedup_over_dense", "_seconds", "_ms", "ms_per_token")
RENAMED = {"eval/ponder_cost"}
# Settings that are newer than a run: it keeps its own values, unless the command names the group `model` again.
NEWER = {"looped_two_states": ("model.geometric_truncation=renormalise",)}
# A budget now fits the halting bias after training (docs/budget.md); the last checkpoint has the weights of training.
TRAINED_WEIGHTS = {("act_budget", "model"): "checkpoints/checkpoint-6"}


@pytest.fixture(autouse=True)
def _inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paths in the runs are relative to where their commands ran."""
    shutil.copytree(HERE / "inputs", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def load_by_command(folder: Path) -> torch.nn.Module:
    """Load a model as `mode=evaluate` does if the command line names every shape that the run had."""
    settings = load_run_settings(folder.parent, "checkpoint").model
    config = read_config("checkpoint", str(folder))
    model_class = getattr(adadepth, config.architectures[0])
    return load_model(str(folder), model_class, settings, shapes(type(settings)), config=config).eval()


@pytest.mark.parametrize("folder", MODELS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_a_model_says_what_it_said(folder: Path) -> None:
    kept = load_file(folder.parents[1] / f"{folder.name}.safetensors")
    inputs = {name.removeprefix("inputs/"): value for name, value in kept.items() if name.startswith("inputs/")}
    with torch.no_grad():
        found = load_by_command(folder)(**inputs)
    said = {name: value for name, value in kept.items() if name != "updates" and not name.startswith("inputs/")}
    assert said, "something is compared"
    for name, value in said.items():
        # Other processors add in another order, hence the tolerance.
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=3e-5, equal_nan=True, msg=name)
    torch.testing.assert_close(found["trace"].updates, kept["updates"])


def test_the_configuration_of_every_checkpoint_is_read() -> None:
    checkpoints = list(HERE.glob("*/stopped/checkpoints/*"))
    assert len(checkpoints) == len(RUNS)
    for checkpoint in checkpoints:
        read_config("resume", str(checkpoint))


@pytest.mark.parametrize("name", mostly_slow(RUNS, FIRST_RUNS.__contains__))
def test_data_and_tokenizer_are_read_off_a_run(name: str) -> None:
    root, *given = RUNS[name]
    model = [override for override in given if override.startswith("model=")]
    found = configured(root, *model, "mode=evaluate", f"checkpoint={HERE / name / 'finished'}")
    trained = configured(root, *given)
    written = {key: value for key, value in WRITTEN_OUT.items() if getattr(trained.dataset, key, "") is None}
    assert found.dataset == dataclasses.replace(trained.dataset, **written)
    assert dataclasses.replace(found.tokenizer, path=None) == dataclasses.replace(trained.tokenizer, path=None)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_evaluated_as_it_was(name: str) -> None:
    given = (f"checkpoint={HERE / name / 'finished'}", "mode=evaluate", "output_dir=evaluated")
    tasks.run(configured(*list_evaluation_overrides(name), *given))
    (record,) = Path("evaluated").glob("*/*/run.json")
    found = json.loads(record.read_text())["final_metrics"]
    kept = json.loads((HERE / name / "evaluated.json").read_text())
    known = {metric_name(key): value for key, value in kept.items() if key not in RENAMED}
    expected = {key: value for key, value in known.items() if not key.endswith(TIMED)}
    assert expected.keys() <= found.keys()
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_run_ends_with_the_weights_it_ended_with(name: str) -> None:
    """Bit for bit where the fixtures were made; another processor adds in another order, hence a tolerance."""
    run = Path("outputs", RUNS[name][0], "run")
    shutil.copytree(HERE / name / "stopped", run)
    tasks.run(configured(*RUNS[name], *NEWER.get(name, ()), f"resume={run}"))
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    for folder in (path.name for path in MODELS if path.parts[-3] == name):
        found = load_file(run / TRAINED_WEIGHTS.get((name, folder), folder) / "model.safetensors")
        kept = load_file(HERE / name / "finished" / folder / "model.safetensors")
        assert found.keys() == kept.keys()
        for key, value in kept.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6, msg=f"{folder}: {key}")
