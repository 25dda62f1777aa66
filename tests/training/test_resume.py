"""Resumed runs, which equal runs that were never stopped, bit for bit."""

import json
import logging
import shutil
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file, save_file

from adadepth.errors import CheckpointError
from adadepth.models.albert_act.modeling import AlbertActPreTrainedModel
from adadepth.runs.checkpoints import (
    checkpoints,
)
from adadepth.training.callbacks import EarlyStoppingCallback
from adadepth.training.depth_budget import TrainingBudget
from tests.marks_support import keep_one_quick, mark_mostly_slow
from tests.training.support import build_tiny_trainer, clone_parameters, collect_losses, find_extension

STEPS = 12


@pytest.mark.parametrize(
    ("accumulation", "workers"), mark_mostly_slow([(1, 0), (1, 2), (2, 0), (2, 2)], lambda case: case == (2, 2))
)
def test_resume_is_bit_exact_mid_epoch_and_at_its_end(tmp_path, workers, accumulation):
    overrides = (
        f"trainer.max_steps={STEPS}",
        f"trainer.gradient_accumulation_steps={accumulation}",
        f"runtime.num_workers={workers}",
        "trainer.per_device_train_batch_size=4",
        "trainer.save_strategy=steps",
        "trainer.save_steps=1",
        "trainer.save_total_limit=null",
        # Dropout draws from the global generators, so their state must come back too.
        "model.hidden_dropout_prob=0.1",
    )
    whole = build_tiny_trainer(tmp_path, *overrides)
    whole.train()
    steps_per_epoch = len(whole.get_train_dataloader()) // accumulation
    boundary, middle = steps_per_epoch, steps_per_epoch + 1
    assert middle < STEPS, f"an epoch has {steps_per_epoch} updates: too long for this test"
    for step in (boundary, middle):
        resumed = build_tiny_trainer(tmp_path / f"resumed-{step}", *overrides)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        for name, value in clone_parameters(whole).items():
            assert torch.equal(value, clone_parameters(resumed)[name]), f"{name} after resuming at step {step}"
        assert collect_losses(whole) == collect_losses(resumed)
        assert _are_equal(whole.optimizer.state_dict()["state"], resumed.optimizer.state_dict()["state"])
        assert whole.lr_scheduler.state_dict()["last_epoch"] == resumed.lr_scheduler.state_dict()["last_epoch"]


@pytest.mark.slow
def test_muon_resumes_bit_for_bit(tmp_path):
    overrides = (
        "trainer.max_steps=4", "trainer.save_strategy=steps", "trainer.save_steps=2", "trainer.save_total_limit=null",
        "trainer.per_device_train_batch_size=4", "trainer.optimizer=muon", "trainer.muon_learning_rate=0.01",
    )  # fmt: skip
    whole, resumed = build_tiny_trainer(tmp_path, *overrides), build_tiny_trainer(tmp_path / "resumed", *overrides)
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, value in clone_parameters(whole).items():
        assert torch.equal(value, clone_parameters(resumed)[name]), name
    assert collect_losses(whole) == collect_losses(resumed)
    assert _are_equal(whole.optimizer.state_dict()["state"], resumed.optimizer.state_dict()["state"])


@pytest.mark.parametrize(
    ("optimizer", "recorded"),
    mark_mostly_slow([("adamw", True), ("adamw", False), ("lamb", True)], lambda case: case[1]),
)
def test_a_checkpoint_with_since_frozen_parameters_resumes_bit_for_bit(tmp_path, monkeypatch, optimizer, recorded):
    """Check a checkpoint of earlier versions, which gave the optimizer the halting unit of a fixed depth, read by no
    loss.
    """
    overrides = (
        "trainer.max_steps=4", "trainer.save_strategy=steps", "trainer.save_steps=2", "trainer.save_total_limit=null",
        "trainer.per_device_train_batch_size=4", "model.fixed_depth=2", "model.act_penalty=0",
        f"trainer.optimizer={optimizer}",
    )  # fmt: skip
    with monkeypatch.context() as earlier:
        earlier.setattr(AlbertActPreTrainedModel, "freeze_untrained", lambda model: None)
        whole = build_tiny_trainer(tmp_path, *overrides)
        whole.train()
    checkpoint = tmp_path / "checkpoint-2"
    stored = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    if not recorded:
        progress = checkpoint / "progress_0.json"
        values = json.loads(progress.read_text())
        progress.write_text(json.dumps({key: value for key, value in values.items() if key != "stateless"}))
    resumed = build_tiny_trainer(tmp_path / "resumed", *overrides)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    groups = [state["param_groups"] for state in (stored, resumed.optimizer.state_dict())]
    before, now = (sum(len(group["params"]) for group in state) for state in groups)
    assert before == now + 2  # the matrix and the bias of the halting unit
    for name, value in clone_parameters(whole).items():
        assert torch.equal(value, clone_parameters(resumed)[name]), name
    assert collect_losses(whole) == collect_losses(resumed)
    moments = [trainer.optimizer.state_dict()["state"].values() for trainer in (whole, resumed)]
    assert _are_equal(*(dict(enumerate(values)) for values in moments))


HELD = (
    f"trainer.max_steps={STEPS}",
    "trainer.save_strategy=steps",
    "trainer.save_steps=3",
    "trainer.save_total_limit=null",
    "trainer.per_device_train_batch_size=4",
    "trainer.logging_steps=1",
    "model.act_penalty=0",
    "model.state_rule=graves",
    "budget.target=2",
    "budget.grow=0.3",
    "budget.hold=0.1",
    "budget.ramp=0.3",
)


@pytest.fixture(scope="module")
def budget_run(tmp_path_factory):
    """Train a whole run under a budget, and return it with the folder of its checkpoints."""
    folder = tmp_path_factory.mktemp("held")
    trainer = build_tiny_trainer(folder, *HELD)
    trainer.train()
    return trainer, folder


@pytest.mark.slow
@pytest.mark.parametrize("at", keep_one_quick(3, [3, 6, 9]), ids=["grows", "falls", "stays"])
def test_a_budget_resumes_bit_for_bit(tmp_path, at, budget_run):
    """Check a resume before, in and after the ramp: weights, multiplier and depth are those of the whole run."""
    whole, folder = budget_run
    resumed = build_tiny_trainer(tmp_path, *HELD)
    resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{at}"))
    for name, value in clone_parameters(whole).items():
        assert torch.equal(value, clone_parameters(resumed)[name]), name
    assert (
        find_extension(whole, TrainingBudget).controller.state_dict()
        == find_extension(resumed, TrainingBudget).controller.state_dict()
    )

    def list_logged(trainer):
        return [
            {name: value for name, value in entry.items() if name.startswith("budget") or name in ("step", "loss")}
            for entry in trainer.state.log_history
            if entry["step"] > at and "loss" in entry
        ]

    assert list_logged(whole) == list_logged(resumed)
    assert {"budget/target", "budget/measured", "budget/multiplier", "budget_loss"} <= list_logged(whole)[0].keys()


@pytest.mark.slow
def test_a_resume_moves_the_halting_bias_once_a_step(tmp_path):
    """Check a saturated halting unit: its bias moves before every step but the first, and not in a finished run."""
    saturated = (
        *HELD, "trainer.max_steps=3", "trainer.save_steps=1", "budget.grow=0", "budget.hold=0", "budget.ramp=0",
        "model.halt_bias_init=-20",
    )  # fmt: skip
    whole = build_tiny_trainer(tmp_path, *saturated)
    whole.train()
    bias = float(whole.model.halting_bias.detach())
    shift = (whole.model.max_updates - 2) / whole.model.max_updates
    assert bias == pytest.approx(-20 + 2 * shift, abs=1e-3)
    for at in (2, 3):
        resumed = build_tiny_trainer(tmp_path / f"from-{at}", *saturated)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
        for name, value in clone_parameters(whole).items():
            assert torch.equal(value, clone_parameters(resumed)[name]), f"{name} after resuming at step {at}"


def _are_equal(first, second):
    return (
        all(
            torch.equal(torch.as_tensor(first[key][name]), torch.as_tensor(second[key][name]))
            for key in first
            for name in first[key]
        )
        and first.keys() == second.keys()
    )


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Train a run with a constant rate, and return it with the folder of its checkpoints, one per update."""
    folder = tmp_path_factory.mktemp("ended")
    trainer = build_tiny_trainer(folder, *UNEVEN, "trainer.save_steps=1")
    trainer.train()
    return trainer, folder


UNEVEN = (
    "trainer.max_steps=7", "trainer.schedule=constant", "trainer.logging_steps=3", "trainer.save_strategy=steps",
    "trainer.save_total_limit=null", "trainer.per_device_train_batch_size=4", "model.hidden_dropout_prob=0.1",
)  # fmt: skip


@pytest.mark.parametrize("at", keep_one_quick(3, [2, 5, 7]))
def test_a_resume_from_any_checkpoint_has_the_same_end(tmp_path, finished_run, at):
    """Check a resume between two lines of the log, and after the last update, which is in the middle of an epoch."""
    whole, folder = finished_run
    assert whole.state.epoch % 1
    resumed = build_tiny_trainer(tmp_path, *UNEVEN, "trainer.save_steps=1")
    resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{at}"))
    assert resumed.state.global_step == 7
    for name, value in clone_parameters(whole).items():
        assert torch.equal(value, clone_parameters(resumed)[name]), name

    def list_logged(trainer):
        lines = [line for line in trainer.state.log_history if "loss" in line]
        return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]

    assert list_logged(whole) == list_logged(resumed), "the first line after a resume is over as many updates"
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in range(at + 1, 8)]


def test_a_resume_logs_as_often_as_its_settings_say(tmp_path, finished_run, caplog):
    """Check also that transformers does not report the difference."""
    _, folder = finished_run
    resumed = build_tiny_trainer(tmp_path, *UNEVEN, "trainer.save_steps=2", "trainer.logging_steps=1")
    with caplog.at_level("WARNING"), _propagate_log("transformers"):
        resumed.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    assert sorted(collect_losses(resumed)) == [3, 4, 5, 6, 7]
    assert resumed.state.save_steps == 2
    assert "do not match" not in caplog.text


@contextmanager
def _propagate_log(library):
    """Let a library's log propagate to its parents."""
    logger = logging.getLogger(library)
    usual, logger.propagate = logger.propagate, True
    try:
        yield
    finally:
        logger.propagate = usual


def test_early_stopping_keeps_its_count_over_resumes(tmp_path):
    """Check with a rate that moves nothing: the third evaluation is the last, however often the run was resumed."""
    overrides = (
        "trainer.max_steps=9", "trainer.eval_strategy=steps", "trainer.eval_steps=1", "trainer.save_strategy=steps",
        "trainer.save_steps=1", "trainer.save_total_limit=null", "trainer.load_best_model_at_end=true",
        "trainer.learning_rate=1e-12",
    )  # fmt: skip

    def train(folder, resume=None):
        trainer = build_tiny_trainer(folder, *overrides)
        trainer.add_callback(EarlyStoppingCallback(2))
        trainer.train(resume_from_checkpoint=resume)
        return trainer.state.global_step

    assert train(tmp_path) == 3
    assert train(tmp_path, str(tmp_path / "checkpoint-2")) == 3
    assert train(tmp_path, str(tmp_path / "checkpoint-3")) == 3


def test_a_checkpoint_of_an_older_version_without_a_manifest_resumes(tmp_path, finished_run):
    _, folder = finished_run
    checkpoint = tmp_path / "checkpoint-7"
    shutil.copytree(folder / "checkpoint-7", checkpoint)
    for newer in ("manifest.json", "progress_0.json"):
        (checkpoint / newer).unlink()
    build_tiny_trainer(tmp_path, *UNEVEN).train(resume_from_checkpoint=str(checkpoint))


def test_a_missing_or_misshapen_weight_is_a_one_line_error(tmp_path, finished_run):
    """Check a checkpoint without a manifest."""
    _, folder = finished_run
    checkpoint = tmp_path / "checkpoint-7"
    shutil.copytree(folder / "checkpoint-7", checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    for changed in ({name: weights[name][:-1].contiguous()}, {}):
        remaining = {other: weight for other, weight in weights.items() if other != name}
        save_file(remaining | changed, checkpoint / "model.safetensors", {"format": "pt"})
        with pytest.raises(CheckpointError, match=r"checkpoint-7: the weights cannot be read: .+") as caught:
            build_tiny_trainer(tmp_path, *UNEVEN).train(resume_from_checkpoint=str(checkpoint))
        assert "\n" not in str(caught.value)


def test_two_runs_of_one_seed_are_equal_and_other_seeds_differ(tmp_path):
    runs = []
    for number, seed in enumerate((0, 0, 1)):
        trainer = build_tiny_trainer(tmp_path / str(number), "trainer.max_steps=2", f"seed={seed}")
        trainer.train()
        runs.append(clone_parameters(trainer))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert not all(torch.equal(runs[0][name], runs[2][name]) for name in runs[0])
