"""Runs of earlier code: loaded, evaluated and resumed with the results they had then."""

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
from tests.marks_support import mark_mostly_slow

HERE = Path(__file__).resolve().parent
MODELS = sorted(path for path in HERE.glob("*/finished/*") if (path / "config.json").exists())
# Metrics that depend on a clock, and metrics with another name now, see CHANGELOG.md.
TIMED = ("runtime", "per_second", "cost/speedup_over_dense", "_seconds", "_ms", "ms_per_token")
RENAMED = {"eval/ponder_cost"}
# Settings that are newer than a run: it keeps its own values, unless the command names the group `model` again.
NEWER = {"looped_two_states": ("model.geometric_truncation=renormalise",)}
# A budget now fits the halting bias after training (docs/budget.md); the last checkpoint has the weights of training.
TRAINED_WEIGHTS = {("act_budget", "model"): "checkpoints/checkpoint-6"}


@pytest.fixture(autouse=True)
def _copy_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the inputs to the working directory, since paths in the runs are relative to it."""
    shutil.copytree(HERE / "inputs", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def load_by_command(folder: Path) -> torch.nn.Module:
    """Load a model as `mode=evaluate` does if the command line names every shape that the run had."""
    settings = load_run_settings(folder.parent, "checkpoint").model
    config = read_config("checkpoint", str(folder))
    model_class = getattr(adadepth, config.architectures[0])
    return load_model(str(folder), model_class, settings, shapes(type(settings)), config=config).eval()


@pytest.mark.parametrize("folder", MODELS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_a_model_has_its_former_outputs(folder: Path) -> None:
    stored = load_file(folder.parents[1] / f"{folder.name}.safetensors")
    inputs = {name.removeprefix("inputs/"): value for name, value in stored.items() if name.startswith("inputs/")}
    with torch.no_grad():
        outputs = load_by_command(folder)(**inputs)
    expected = {name: value for name, value in stored.items() if name != "updates" and not name.startswith("inputs/")}
    assert expected, "something is compared"
    for name, value in expected.items():
        # Other processors add in another order, hence the tolerance.
        torch.testing.assert_close(outputs[name], value, rtol=1e-4, atol=3e-5, equal_nan=True, msg=name)
    torch.testing.assert_close(outputs["trace"].updates, stored["updates"])


def test_the_configuration_of_every_checkpoint_is_read() -> None:
    checkpoints = list(HERE.glob("*/stopped/checkpoints/*"))
    assert len(checkpoints) == len(RUNS)
    for checkpoint in checkpoints:
        read_config("resume", str(checkpoint))


@pytest.mark.parametrize("name", mark_mostly_slow(RUNS, FIRST_RUNS.__contains__))
def test_data_and_tokenizer_are_inherited_from_a_run(name: str) -> None:
    root, *overrides = RUNS[name]
    model = [override for override in overrides if override.startswith("model=")]
    inherited = configured(root, *model, "mode=evaluate", f"checkpoint={HERE / name / 'finished'}")
    trained = configured(root, *overrides)
    written = {key: value for key, value in WRITTEN_OUT.items() if getattr(trained.dataset, key, "") is None}
    assert inherited.dataset == dataclasses.replace(trained.dataset, **written)
    assert dataclasses.replace(inherited.tokenizer, path=None) == dataclasses.replace(trained.tokenizer, path=None)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_an_evaluation_has_its_former_metrics(name: str) -> None:
    overrides = (f"checkpoint={HERE / name / 'finished'}", "mode=evaluate", "output_dir=evaluated")
    tasks.run(configured(*list_evaluation_overrides(name), *overrides))
    (record,) = Path("evaluated").glob("*/*/run.json")
    metrics = json.loads(record.read_text())["final_metrics"]
    stored = json.loads((HERE / name / "evaluated.json").read_text())
    renamed = {metric_name(key): value for key, value in stored.items() if key not in RENAMED}
    expected = {key: value for key, value in renamed.items() if not key.endswith(TIMED)}
    assert expected.keys() <= metrics.keys()
    assert {key: metrics[key] for key in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_ends_with_its_former_weights(name: str) -> None:
    """Compare with a tolerance: runs are equal bit for bit where the fixtures were made, other processors round
    otherwise.
    """
    run = Path("outputs", RUNS[name][0], "run")
    shutil.copytree(HERE / name / "stopped", run)
    tasks.run(configured(*RUNS[name], *NEWER.get(name, ()), f"resume={run}"))
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    for folder in (path.name for path in MODELS if path.parts[-3] == name):
        weights = load_file(run / TRAINED_WEIGHTS.get((name, folder), folder) / "model.safetensors")
        stored = load_file(HERE / name / "finished" / folder / "model.safetensors")
        assert weights.keys() == stored.keys()
        for key, value in stored.items():
            torch.testing.assert_close(weights[key], value, rtol=0, atol=1e-6, msg=f"{folder}: {key}")
