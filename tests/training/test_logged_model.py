"""Trackers end with the values of the saved model: after a correction of its depth, and after loading the best step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

from adadepth import tasks
from adadepth.config import BudgetConfig
from adadepth.report.run_files import read_run, series
from adadepth.tasks import budgets
from adadepth.tasks.stored_models import find_trained_step
from adadepth.training.callbacks import TrackingCallback, find_saved_step
from adadepth.training.depth_budget import TrainingBudget
from adadepth.training.trackers.base import Tracker
from tests.configs.support import configured
from tests.unit.report.synthetic import make_run

TINY = (
    "dataset.size=3", "dataset.beyond_sizes=[]",
    "dataset.max_evaluation_examples=24", "dataset.train_examples=32", "model.num_hidden_layers=4",
    "model.hidden_size=16", "model.embedding_size=16", "model.num_attention_heads=2", "model.intermediate_size=32",
    "budget.target=2", "budget.grow_from=3", "trainer.max_steps=4", "trainer.logging_steps=1",
)  # fmt: skip


class Recorder(Tracker):
    """Tracker that records what it gets."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, Any], int]] = []

    def log(self, metrics: Any, step: int) -> None:
        self.calls.append((dict(metrics), step))


def test_the_evaluation_of_the_saved_model_is_logged_under_its_step(tmp_path: Path) -> None:
    tracker, state = Recorder(), TrainerState(global_step=6, best_global_step=4)
    tracking = TrackingCallback(tracker, tmp_path)
    args: Any = SimpleNamespace(load_best_model_at_end=True)
    tracking.on_log(args, state, TrainerControl(), {"eval_loss": 2.0, "epoch": 3.0})
    tracking.evaluated_step = 6
    assert tracking.needs_final_evaluation(args, state)
    with tracking.logging_saved_model(find_saved_step(args, state)):
        tracking.on_log(args, state, TrainerControl(), {"eval_loss": 1.5, "epoch": 3.0})
    assert tracker.calls == [({"eval/loss": 2.0, "train/epoch": 3.0}, 6), ({"eval/loss": 1.5}, 4)]


def test_the_last_weights_are_evaluated_once_where_none_are_loaded(tmp_path: Path) -> None:
    args: Any = SimpleNamespace(load_best_model_at_end=False)
    tracking, state = TrackingCallback(Recorder(), tmp_path), TrainerState(global_step=6, best_global_step=4)
    tracking.evaluated_step = 6
    assert find_saved_step(args, state) == 6
    assert not tracking.needs_final_evaluation(args, state)


@pytest.mark.parametrize(("step", "warns"), [(3, False), (9, True)])
def test_a_single_depth_is_no_fault_under_a_full_depth_budget(step: int, warns: bool, tmp_path: Path) -> None:
    settings = BudgetConfig(target=2.0, hold=0.5, ramp=0.2)
    model: Any = SimpleNamespace(max_updates=6, halting_bias=None)
    budget = TrainingBudget(settings, model, torch.device("cpu"), lambda batch: True)
    args, state, control = TrainingArguments(tmp_path), TrainerState(global_step=step, max_steps=10), TrainerControl()
    budget.on_step_begin(args, state, control)
    advice = {"warning": "depth does not adapt", "advice": "model.init_depth=3 (start deeper)"}
    statistics = dict(read_run(make_run(tmp_path, 6, 2)).halting)
    statistics["adaptation"] = statistics["adaptation"] | advice
    report = SimpleNamespace(statistics=statistics, sentences=[], grids={}, predictions=None, rows=None, exits=None)
    tracking = TrackingCallback(Recorder(), tmp_path)
    tracking.trainer = cast(
        Any,
        SimpleNamespace(
            model=SimpleNamespace(one_depth=None, config=None), extensions=[budget], last_reports={"test": report}
        ),
    )
    tracking.on_evaluate(args, state, control)
    adaptation = json.loads((tmp_path / "halting.json").read_text())["adaptation"]
    assert {name for name in advice if name in adaptation} == (set(advice) if warns else set())


@pytest.mark.parametrize(("commonest", "advice"), [(5, "model.halt_bias_init=-9 starts deeper"), (6, None)])
def test_a_deeper_start_is_advised_below_full_depth(commonest: int, advice: str | None, tmp_path: Path) -> None:
    statistics = dict(read_run(make_run(tmp_path, 6, 2)).halting)
    collapse = {"warning": "depth does not adapt", "advice": "model.halt_bias_init=-9 starts deeper"}
    statistics["adaptation"] = statistics["adaptation"] | collapse | {"commonest": commonest}
    report = SimpleNamespace(statistics=statistics, sentences=[], grids={}, predictions=None, rows=None, exits=None)
    tracking = TrackingCallback(Recorder(), tmp_path, configured("act_tiny"))
    model = SimpleNamespace(one_depth=None, config=SimpleNamespace())
    tracking.trainer = cast(Any, SimpleNamespace(model=model, extensions=[], last_reports={"test": report}))
    tracking.on_evaluate(TrainingArguments(tmp_path), TrainerState(global_step=9), TrainerControl())
    assert json.loads((tmp_path / "halting.json").read_text())["adaptation"].get("advice") == advice


@pytest.mark.parametrize(("rule", "baseline", "warns"), [
    ("margin:0.5", None, True),
    ("fixed:2", None, False),
    (None, None, False),
    ("margin:0.5", "outputs/run", False),
])  # fmt: skip
def test_a_fixed_depth_by_design_is_no_fault(
    rule: str | None, baseline: str | None, warns: bool, tmp_path: Path
) -> None:
    statistics = dict(read_run(make_run(tmp_path, 6, 2)).halting)
    statistics["adaptation"] = statistics["adaptation"] | {"warning": "depth does not adapt", "advice": "train longer"}
    report = SimpleNamespace(statistics=statistics, sentences=[], grids={}, predictions=None, rows=None, exits=None)
    config = replace(configured("act_tiny"), rival_of=baseline)
    tracking = TrackingCallback(Recorder(), tmp_path, config)
    model = SimpleNamespace(one_depth=None, config=SimpleNamespace(exit_rule=rule))
    tracking.trainer = cast(Any, SimpleNamespace(model=model, extensions=[], last_reports={"test": report}))
    tracking.on_evaluate(TrainingArguments(tmp_path), TrainerState(global_step=9), TrainerControl())
    adaptation = json.loads((tmp_path / "halting.json").read_text())["adaptation"]
    assert ("warning" in adaptation, "advice" in adaptation) == (warns, warns)


@pytest.mark.parametrize(("signals", "shows", "missing"), [
    (("halting",), False, set()),
    (("logits",), True, {"halting/cosine", "halting/probability"}),
])  # fmt: skip
def test_values_without_an_evaluation_are_not_missing(
    signals: tuple[str, ...], shows: bool, missing: set[str], tmp_path: Path
) -> None:
    statistics = dict(read_run(make_run(tmp_path, 6, 2)).halting)
    statistics["missing"] = dict.fromkeys(("halting/cosine", "halting/probability"), "a reason")
    report = SimpleNamespace(statistics=statistics, sentences=[], grids={}, predictions=None, rows=None, exits=None)
    tracking = TrackingCallback(Recorder(), tmp_path)
    model = SimpleNamespace(one_depth=None, config=None, exit_signals=signals, shows_states=shows)
    tracking.trainer = cast(Any, SimpleNamespace(model=model, extensions=[], last_reports={"test": report}))
    tracking.on_evaluate(TrainingArguments(tmp_path), TrainerState(global_step=9), TrainerControl())
    assert set(json.loads((tmp_path / "halting.json").read_text())["missing"]) == missing


def test_stored_weights_have_the_step_of_their_run_or_checkpoint(tmp_path: Path) -> None:
    model, checkpoint = tmp_path / "model", tmp_path / "checkpoints" / "checkpoint-40"
    assert find_trained_step("someone/model") is find_trained_step(str(model)) is None
    selected = {"step": 32, "metric": "eval/loss", "value": 1.0, "extreme": "lowest"}
    for best, done in ((selected, 44), (None, 32)):
        record = {"status": "finished", "selected": best, "steps": {"done": done, "planned": 99}}
        (tmp_path / "run.json").write_text(json.dumps(record))
        assert find_trained_step(str(model)) == 32
    checkpoint.mkdir(parents=True)
    TrainerState(global_step=40).save_to_json(str(checkpoint / "trainer_state.json"))
    assert find_trained_step(str(checkpoint)) == 40


def run_tiny(root: str, folder: Path, *overrides: str) -> tuple[Path, list[dict[str, Any]], dict[str, float]]:
    """Return directory, log and final metrics of a run that is evaluated at every step."""
    settings = ("debug=default", "trainer.disable_tqdm=true", "trainer.eval_steps=1", "trainer.save_steps=1")
    tasks.run(configured(root, *settings, *overrides, f"output_dir={folder}"))
    (directory,) = folder.glob(f"{root}/*")
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    histogram = [line["halting/all/histogram"] for line in lines if "halting/all/histogram" in line][-1]
    assert histogram == json.loads((directory / "halting.json").read_text())["classes"]["all"]["histogram"]
    return directory, lines, json.loads((directory / "run.json").read_text())["final_metrics"]


def list_logged(lines: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(line["step"], line[name]) for line in lines if name in line]


NAMES = ("eval/loss", "halting/all/mean", "cost/adaptive_over_full")


@pytest.mark.slow
def test_the_log_ends_with_the_corrected_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def correct(settings: Any, session: Any) -> bool:
        with torch.no_grad():
            session.trainer.model.halting_bias.add_(20.0)
        return True

    monkeypatch.setattr(budgets, "correct_depth", correct)
    _, lines, final = run_tiny("act_maze", tmp_path, *TINY)
    for name in NAMES:
        assert list_logged(lines, name)[-1] == (4, final[name])
    assert list_logged(lines, "halting/all/mean")[-2] != list_logged(lines, "halting/all/mean")[-1]
    trained, _, saved = capsys.readouterr().out.partition("training ended")
    assert "halting at step" in trained
    assert "warning: depth" not in trained
    assert saved.count("warning: depth does not adapt: 100 % of") == 1, "all tokens stop at update 1"


@pytest.mark.slow
def test_the_log_ends_with_the_best_step(tmp_path: Path) -> None:
    """Check that these values are those it had before, so that the curves of the report stay those of the training."""
    directory, lines, final = run_tiny(
        "act_tiny", tmp_path, "budget=none", "trainer.learning_rate=1e-12", "trainer.max_steps=9", "seed=3",
        "trainer.early_stopping_patience=2", "trainer.eval_on_start=false",
    )  # fmt: skip
    for name in NAMES:
        logged = list_logged(lines, name)
        assert logged[-1] == (1, final[name])
        assert logged[0] == logged[-1]
    assert [step for step, _ in series(read_run(directory).metrics, "eval/loss")] == [1, 2, 3]
