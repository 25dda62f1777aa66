"""Runs that end early: asked to, out of time, or because the loss is no number any more."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adadepth import tasks
from adadepth.errors import UserError
from adadepth.training.callbacks import StopCallback
from adadepth.training.checkpoints import complete_checkpoints
from tests.configs.support import configured
from tests.figures_support import undrawn
from tests.training.support import tiny_trainer

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("part", ["mlm", "ponder"])
def test_a_non_finite_part_stops_the_run_and_keeps_the_last_checkpoint(tmp_path, part):
    saving = ("trainer.save_strategy=steps", "trainer.save_steps=2")
    trainer = tiny_trainer(tmp_path, "trainer.max_steps=6", "trainer.logging_steps=6", *saving)
    record = trainer.progress.record

    def poisoned(name, value, step):
        bad = name == part and step == 3
        record(name, value * float("nan") if bad else value, step)

    trainer.progress.record = poisoned
    with pytest.raises(UserError, match=f"'{part}' is not finite at step 3"):
        trainer.train()
    kept = complete_checkpoints(tmp_path)
    assert [path.name for path in kept] == ["checkpoint-2"]
    assert all(p.isfinite().all() for p in trainer.model.parameters())


def test_time_budget_stops_with_a_checkpoint_and_an_evaluation(tmp_path):
    trainer = tiny_trainer(tmp_path, "trainer.max_steps=1000")
    stop = StopCallback(time_budget_minutes=1e-6)
    trainer.add_callback(stop)
    trainer.train()
    assert trainer.state.global_step == 1
    assert stop.reason == "time budget spent"
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["checkpoint-1"]
    assert any("eval_loss" in entry for entry in trainer.state.log_history)


def test_what_a_signal_saved_is_kept_where_only_the_best_checkpoint_is(tmp_path):
    """With a learning rate that moves nothing, the first checkpoint stays the best one."""
    trainer = tiny_trainer(
        tmp_path, "trainer.max_steps=6", "trainer.eval_strategy=steps", "trainer.eval_steps=2", "trainer.save_steps=2",
        "trainer.save_strategy=steps", "trainer.save_total_limit=1", "trainer.load_best_model_at_end=true",
        "trainer.learning_rate=1e-12",
    )  # fmt: skip
    stop = StopCallback()
    trainer.add_callback(stop)
    training_step = trainer.training_step

    def interrupted(*args, **kwargs):
        stop.signal = signal.SIGTERM if trainer.state.global_step == 2 else None
        return training_step(*args, **kwargs)

    trainer.training_step = interrupted
    trainer.train()
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-3"]


def test_a_signal_that_another_process_told_of_first_does_not_end_the_saving():
    """Processes get their launcher's signal one after the other, and agree on it when the first of them has it."""
    stop = StopCallback()
    with stop.listening():
        stop.signal = signal.SIGTERM  # what the vote says
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)


def test_early_stopping(tmp_path):
    """With a learning rate that moves nothing, the second evaluation without improvement is the last."""
    overrides = ("trainer.max_steps=40", "trainer.eval_steps=1", "trainer.save_steps=1", "trainer.learning_rate=1e-12")
    patience = ("trainer.early_stopping_patience=2", "trainer.eval_on_start=false")
    tasks.run(configured("act_tiny", "debug=default", f"output_dir={tmp_path}", *overrides, *patience))
    (directory,) = tmp_path.glob("act_tiny/*")
    assert max(step for step, _ in _losses(directory)) == 3
    assert json.loads((directory / "run.json").read_text())["best_checkpoint"] == "checkpoint-1"


# Nothing is evaluated, to compare training alone; the steps are few enough to catch and many enough to hit.
SIXTY_STEPS = (
    "debug=default", "trainer.disable_tqdm=true", "trainer.max_steps=60", "trainer.eval_strategy=no",
    "trainer.load_best_model_at_end=false", "trainer.save_strategy=steps", "trainer.save_steps=60",
    "trainer.eval_on_start=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The folder of a run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    with undrawn():
        tasks.run(configured("act_tiny", *SIXTY_STEPS, f"output_dir={folder}"))
    (directory,) = folder.glob("act_tiny/*")
    return directory


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_exit_cleanly_and_resume_exactly(tmp_path, number, reference):
    """A killed command, resumed by another process, leaves the weights of one that was left alone."""
    given = (*SIXTY_STEPS, f"output_dir={tmp_path}")
    command = [sys.executable, "adadepth/run.py", "--config-name", "act_tiny", *given]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("train step 5/"):
            process.send_signal(number)
            break
    lines += process.stdout.readlines()
    assert process.wait(60) == 128 + number, "".join(lines)
    assert f"interrupted by {number.name}" in "".join(lines)
    (directory,) = tmp_path.glob("act_tiny/*")
    assert json.loads((directory / "run.json").read_text())["status"] == "interrupted"
    assert (directory / "report.html").is_file()
    tasks.run(configured("act_tiny", *given, "resume=latest"))
    assert json.loads((directory / "run.json").read_text())["status"] == "finished"
    for name in ("model/model.safetensors",):
        assert (directory / name).read_bytes() == (reference / name).read_bytes()
    assert _losses(directory) == _losses(reference)


def _losses(directory):
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]
