"""Runs that end early: by a signal, out of time, or because the loss is not finite."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from adadepth import tasks
from adadepth.errors import UserError
from adadepth.evaluation.evaluation import Evaluation
from adadepth.runs.checkpoints import checkpoints, list_complete_checkpoints
from adadepth.training.callbacks import StopCallback
from adadepth.training.loss_tracking import UPDATES, DivergedError, ExplosionDetector
from adadepth.training.trainer import DepthTrainer
from tests.configs.support import configured
from tests.marks_support import keep_one_quick
from tests.training.support import build_tiny_trainer

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("part", ["mlm", "ponder"])
def test_a_non_finite_part_stops_the_run_and_keeps_the_last_checkpoint(tmp_path, part):
    saving = ("trainer.save_strategy=steps", "trainer.save_steps=2")
    trainer = build_tiny_trainer(tmp_path, "trainer.max_steps=6", "trainer.logging_steps=6", *saving)
    record = trainer.progress.record

    def poison(name, value, step):
        bad = name == part and step == 3
        record(name, value * float("nan") if bad else value, step)

    trainer.progress.record = poison
    with pytest.raises(UserError, match=f"'{part}' is not finite at step 3"):
        trainer.train()
    checkpoints = list_complete_checkpoints(tmp_path)
    assert [path.name for path in checkpoints] == ["checkpoint-2"]
    assert all(p.isfinite().all() for p in trainer.model.parameters())


def test_non_finite_weights_are_not_saved(tmp_path):
    """Check an update that is not finite though its loss is: the checkpoint before it stays the newest."""
    saving = ("trainer.save_strategy=steps", "trainer.save_steps=2")
    trainer = build_tiny_trainer(tmp_path, "trainer.max_steps=6", *saving)
    step = trainer.training_step

    def poison(model, *args):
        loss = step(model, *args)
        if trainer.state.global_step == 3:
            next(trainer.model.parameters()).grad.fill_(float("nan"))
        return loss

    trainer.training_step = poison
    with pytest.raises(
        DivergedError,
        match=r"are not finite at step 4; the last complete "
        r"checkpoint is \S+checkpoint-2\.",
    ):
        trainer.train()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-2"]


@pytest.mark.parametrize(("factor", "first"), keep_one_quick(2, [(None, 0.001), (12.0, None)]))
def test_an_exploding_loss_ends_the_run_without_a_checkpoint_of_it(tmp_path, factor, first):
    """Let the loss explode from the fourth update on; for a first loss below 1, the limit is 10."""
    saving = ("trainer.save_strategy=steps", "trainer.save_steps=1", "trainer.save_total_limit=1")
    trainer = build_tiny_trainer(tmp_path, "trainer.max_steps=30", "trainer.logging_steps=1", *saving)
    record = trainer.progress.record_loss

    def explode(loss):
        late = trainer.state.global_step >= 3
        record(torch.tensor(first + 10 * late) if first else loss * (factor if late else 1))

    trainer.progress.record_loss = explode
    with pytest.raises(
        DivergedError, match=r"for 10 optimiser steps; the last complete checkpoint is \S+checkpoint-3\."
    ):
        trainer.train()
    assert trainer.state.global_step == 13


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["1e3", "1e30"])
def test_an_exploding_search_ends_with_a_one_line_error(tmp_path, rate):
    """Check gates that are not finite, which have no most probable operation and cannot be drawn."""
    overrides = (
        "search.stages=[search]",
        "trainer.max_steps=20",
        f"trainer.learning_rate={rate}",
        f"output_dir={tmp_path}",
    )
    with pytest.raises(UserError) as caught:
        tasks.run(configured("par_tiny", "debug=default", *overrides))
    assert re.match(r"the (loss|loss part 'lm'|weights?) ", str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    (record,) = tmp_path.glob("par_tiny/*/run.json")
    assert json.loads(record.read_text())["status"] == "failed"


AT_EVERY_STEP = (
    "debug=default", "trainer.max_steps=12", "trainer.eval_steps=1", "trainer.save_steps=1", "trainer.warmup_steps=0",
    "trainer.disable_tqdm=true",
)  # fmt: skip
DIVERGING = [
    pytest.param(("act_tiny", "trainer.learning_rate=1e3"), marks=pytest.mark.slow),
    ("act_tiny", "model.initializer_range=1e30"),
    ("par_tiny", "trainer.learning_rate=1e30", "search.gate_learning_rate=1e30", "search.baselines=[]"),
    *(
        pytest.param((root, "trainer.learning_rate=1e30", *overrides), marks=pytest.mark.slow)
        for root, *overrides in (
            ["act_hops"], ["par_network"], ["ponder_tiny"], ["ponder_tiny", "model=pabee_mini"], ["ponder_parity"],
            ["ponder_tiny", "model=albert_mini"], ["trm_tiny"],
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("command", DIVERGING)
def test_divergence_is_a_one_line_error_wherever_it_shows_first(tmp_path, command):
    """Check updates, evaluations and tables of gates; nothing is left half-written."""
    root, *overrides = command
    with pytest.raises(DivergedError) as caught:
        tasks.run(configured(root, *AT_EVERY_STEP, *overrides, f"output_dir={tmp_path}"))
    assert "\n" not in str(caught.value)
    (record,) = tmp_path.glob("*/*/run.json")
    record_content = json.loads(record.read_text())
    assert (record_content["status"], record_content["error"]) == ("failed", f"DivergedError: {caught.value}")
    for path in record.parent.glob("*.json*"):
        assert "NaN" not in path.read_text()
    assert not list(record.parent.rglob("*.tmp"))


def test_temporary_peaks_of_the_loss_are_no_explosion():
    explosion = ExplosionDetector()
    for loss in [2.0, *[25.0] * 9, 2.0, *[19.0] * 30, *[25.0] * 9]:
        explosion.add(torch.tensor(loss / 2))
        explosion.add(torch.tensor(loss / 2))
        explosion.end_step()
    assert explosion.updates() == 9 < UPDATES


@pytest.mark.slow
@pytest.mark.parametrize("what", ["weights", "evaluation"])
def test_a_run_that_ends_with_non_finite_values_has_failed(tmp_path, what, monkeypatch):
    """Break the last update, or the last evaluation; nothing is saved as its model."""
    overrides = ("debug=default", f"output_dir={tmp_path}", "trainer.max_steps=2", "trainer.save_strategy=no",
                 "trainer.load_best_model_at_end=false")  # fmt: skip
    train = DepthTrainer.train

    def break_weights(trainer, *args, **kwargs):
        training = train(trainer, *args, **kwargs)
        next(trainer.model.parameters()).data.fill_(float("nan"))
        return training

    if what == "weights":
        monkeypatch.setattr(DepthTrainer, "train", break_weights)
    else:
        monkeypatch.setattr(Evaluation, "losses", lambda evaluation: {"mlm_loss": float("nan")})
    with pytest.raises(DivergedError, match="not finite"):
        tasks.run(configured("act_tiny", *overrides))
    (directory,) = tmp_path.glob("act_tiny/*")
    assert json.loads((directory / "run.json").read_text())["status"] == "failed"
    assert not (directory / "model").exists()


def test_time_budget_stops_with_a_checkpoint_and_an_evaluation(tmp_path):
    trainer = build_tiny_trainer(tmp_path, "trainer.max_steps=1000")
    stop = StopCallback(time_budget_minutes=1e-6)
    trainer.add_callback(stop)
    trainer.train()
    assert trainer.state.global_step == 1
    assert stop.reason == "time budget spent"
    assert [path.name for path in list_complete_checkpoints(tmp_path)] == ["checkpoint-1"]
    assert any("eval_loss" in entry for entry in trainer.state.log_history)


def test_a_checkpoint_saved_by_a_signal_is_kept_beside_the_best(tmp_path):
    """Train with a learning rate that moves nothing, so that the first checkpoint stays the best."""
    trainer = build_tiny_trainer(
        tmp_path, "trainer.max_steps=6", "trainer.eval_strategy=steps", "trainer.eval_steps=2", "trainer.save_steps=2",
        "trainer.save_strategy=steps", "trainer.save_total_limit=1", "trainer.load_best_model_at_end=true",
        "trainer.learning_rate=1e-12",
    )  # fmt: skip
    stop = StopCallback()
    trainer.add_callback(stop)
    training_step = trainer.training_step

    def interrupt(*args, **kwargs):
        stop.signal = signal.SIGTERM if trainer.state.global_step == 2 else None
        return training_step(*args, **kwargs)

    trainer.training_step = interrupt
    trainer.train()
    assert [path.name for path in list_complete_checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-3"]


def test_a_signal_already_agreed_on_does_not_end_the_saving():
    """Deliver the launcher's signal after the processes agreed on it, which happens when the first of them has it."""
    stop = StopCallback()
    with stop.listening():
        stop.signal = signal.SIGTERM  # what the vote says
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)


def test_the_first_ctrl_c_says_what_a_second_one_does(capfd):
    stop = StopCallback()
    with stop.listening():
        signal.raise_signal(signal.SIGINT)
        assert "with a checkpoint; Ctrl-C again stops at once without one" in capfd.readouterr().err
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGINT)
    assert not capfd.readouterr().err


@pytest.mark.parametrize("saves", [True, False])
def test_a_run_that_ends_at_once_says_whether_it_can_be_resumed(tmp_path, saves, capsys, monkeypatch):
    """Send a second signal in training, or one after training: the newest complete checkpoint is an earlier one."""

    def interrupt(trainer, *args, **kwargs):
        if trainer.state.global_step == 2:
            raise SystemExit(128 + signal.SIGTERM)
        return step(trainer, *args, **kwargs)

    step = DepthTrainer.training_step
    monkeypatch.setattr(DepthTrainer, "training_step", interrupt)
    saving = ("trainer.load_best_model_at_end=false", f"trainer.save_steps={1 if saves else 4}")
    with pytest.raises(SystemExit):
        tasks.run(configured("act_tiny", "debug=default", f"output_dir={tmp_path}", "trainer.max_steps=4", *saving))
    (directory,) = tmp_path.glob("act_tiny/*")
    lines = capsys.readouterr().out.splitlines()
    if saves:
        number = lines.index("interrupted by SIGTERM at step 2")
        assert lines[number + 1].endswith(f" resume={directory}")
    else:
        assert "interrupted by SIGTERM at step 2, without a checkpoint: this run cannot be resumed" in lines


@pytest.mark.slow
def test_a_search_stopped_in_a_retraining_is_resumed_as_a_whole(tmp_path, capsys, monkeypatch):
    def interrupt(trainer, *args, **kwargs):
        if "retrained" in trainer.args.output_dir:
            raise SystemExit(128 + signal.SIGTERM)
        return step(trainer, *args, **kwargs)

    step = DepthTrainer.training_step
    monkeypatch.setattr(DepthTrainer, "training_step", interrupt)
    with pytest.raises(SystemExit):
        tasks.run(configured("par_tiny", "debug=default", f"output_dir={tmp_path}"))
    (directory,) = tmp_path.glob("par_tiny/*")
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("interrupted by SIGTERM at step 0") + 1].endswith(f" resume={directory}")


@pytest.mark.slow
def test_early_stopping_ends_a_run_without_improvement(tmp_path):
    """Train with a learning rate that moves nothing: the second evaluation without improvement is the last."""
    overrides = ("trainer.max_steps=40", "trainer.eval_steps=1", "trainer.save_steps=1", "trainer.learning_rate=1e-12")
    patience = ("trainer.early_stopping_patience=2", "trainer.eval_on_start=false")
    tasks.run(configured("act_tiny", "budget=none", "debug=default", f"output_dir={tmp_path}", *overrides, *patience))
    (directory,) = tmp_path.glob("act_tiny/*")
    assert max(step for step, _ in _read_losses(directory)) == 3
    assert json.loads((directory / "run.json").read_text())["best_checkpoint"] == "checkpoint-1"


# Nothing is evaluated, to compare training alone; the steps are few enough to catch and many enough to hit.
SIXTY_STEPS = (
    "debug=default", "trainer.disable_tqdm=true", "trainer.max_steps=60", "trainer.eval_strategy=no",
    "trainer.load_best_model_at_end=false", "trainer.save_strategy=steps", "trainer.save_steps=60",
    "trainer.eval_on_start=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted_run(tmp_path_factory):
    """Return the folder of a run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    tasks.run(configured("act_tiny", *SIXTY_STEPS, f"output_dir={folder}"))
    (directory,) = folder.glob("act_tiny/*")
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_save_exit_cleanly_and_resume_exactly(tmp_path, number, uninterrupted_run):
    """Kill a command, resume it in another process, and compare the weights with those of an uninterrupted run."""
    overrides = (*SIXTY_STEPS, f"output_dir={tmp_path}")
    command = [sys.executable, "adadepth/run.py", "--config-name", "act_tiny", *overrides]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("train step 5/"):
            process.send_signal(number)
            break
    lines += process.stdout.readlines()
    assert process.wait(600) == 128 + number, "".join(lines)
    assert f"interrupted by {number.name}" in "".join(lines)
    (directory,) = tmp_path.glob("act_tiny/*")
    assert json.loads((directory / "run.json").read_text())["status"] == "interrupted"
    assert (directory / "report.html").is_file()
    tasks.run(configured("act_tiny", *overrides, "resume=latest"))
    assert json.loads((directory / "run.json").read_text())["status"] == "finished"
    for name in ("model/model.safetensors",):
        assert (directory / name).read_bytes() == (uninterrupted_run / name).read_bytes()
    assert _read_losses(directory) == _read_losses(uninterrupted_run)


def _read_losses(directory):
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]


EPOCHS = (
    "trainer.max_steps=-1", "trainer.num_train_epochs=3", "trainer.per_device_train_batch_size=4",
    "trainer.eval_strategy=epoch", "trainer.save_strategy=epoch", "trainer.logging_steps=4",
    "trainer.save_total_limit=null", "trainer.load_best_model_at_end=true",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("at", ["middle", "end"])
def test_an_interruption_is_no_epoch_end(tmp_path, at):
    """Stop in the middle, which saves and evaluates nothing, and at the end, where the checkpoint has all of the
    epoch's end.
    """
    whole = build_tiny_trainer(tmp_path / "whole", *EPOCHS)
    whole.add_callback(StopCallback())
    whole.train()
    updates = whole.state.max_steps // 3
    stop_at = updates + 1 if at == "middle" else 2 * updates

    stopped = build_tiny_trainer(tmp_path / "stopped", *EPOCHS)
    stop, step = StopCallback(), stopped.training_step

    def interrupt(*args, **kwargs):
        stop.signal = signal.SIGTERM if stopped.state.global_step == stop_at - 1 else None
        return step(*args, **kwargs)

    stopped.training_step = interrupt
    stopped.add_callback(stop)
    stopped.train()
    (newest,) = list_complete_checkpoints(tmp_path / "stopped")[-1:]
    assert newest.name == f"checkpoint-{stop_at}"
    resumed = build_tiny_trainer(tmp_path / "stopped", *EPOCHS)
    resumed.add_callback(StopCallback())
    resumed.train(resume_from_checkpoint=str(newest))
    assert list_logged(resumed) == list_logged(whole)
    assert resumed.state.best_global_step == whole.state.best_global_step
    for name, weight in whole.model.named_parameters():
        assert torch.equal(weight, resumed.model.get_parameter(name)), name


def list_logged(trainer):
    """Return the logged lines without times."""
    lines = [line for line in trainer.state.log_history if "train_runtime" not in line]
    return [
        {name: value for name, value in line.items() if "runtime" not in name and "_second" not in name}
        for line in lines
    ]
