"""Checkpoints whose manifest is right and whose states are not, because whoever hands one on can seal it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import IntervalStrategy, TrainerControl, TrainerState

from adadepth.errors import CheckpointError
from adadepth.runs.checkpoints import find_checkpoint_error, seal_checkpoint
from adadepth.training.callbacks import EarlyStoppingCallback
from adadepth.training.ema import WeightAverageExtension
from tests.marks_support import keep_one_quick
from tests.training.support import build_tiny_trainer

OVERRIDES = ("trainer.max_steps=3", "trainer.save_strategy=steps", "trainer.save_steps=2", "trainer.eval_strategy=no",
             "trainer.load_best_model_at_end=false", "trainer.save_total_limit=null")  # fmt: skip


@pytest.fixture(scope="module")
def finished_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ended")
    build_tiny_trainer(folder, *OVERRIDES).train()
    return folder / "checkpoint-2"


@pytest.fixture
def checkpoint(finished_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_checkpoint, tmp_path / finished_checkpoint.name))


def resume_training(checkpoint: Path) -> None:
    build_tiny_trainer(checkpoint.parent, *OVERRIDES).train(resume_from_checkpoint=str(checkpoint))


def change_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_state(path: Path, change: Callable[[Any], Any]) -> None:
    state = torch.load(path, weights_only=False)
    change(state)
    torch.save(state, path)


def test_an_unchanged_checkpoint_resumes(checkpoint: Path) -> None:
    seal_checkpoint(checkpoint)
    assert find_checkpoint_error(checkpoint) is None
    resume_training(checkpoint)


# One case of every file; tests/unit/training/test_stored_states.py has all faults of a state.
@pytest.mark.parametrize(("name", "change", "words"), [
    ("optimizer.pt", lambda s: s["state"].pop(0), r"the stored state of '\S+' is missing"),
    ("scheduler.pt", lambda s: s.update(last_epoch=10**6), "the schedule cannot be read: last_epoch is 1000000"),
    ("rng_state.pth", lambda s: s.pop("python"), "the file holds no random-generator states"),
    ("rng_state.pth", lambda s: s.update(cpu=s["cpu"][:9]), "the random-generator states cannot be read"),
])  # fmt: skip
def test_a_state_that_does_not_fit_is_a_one_line_error(
    checkpoint: Path, name: str, change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    change_state(checkpoint / name, change)
    seal_checkpoint(checkpoint)
    assert find_checkpoint_error(checkpoint) is None
    with pytest.raises(CheckpointError, match=rf"checkpoint-2: .*{words}") as caught:
        resume_training(checkpoint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("weight"), "weight is missing"),
        (lambda w: w.update(other=torch.zeros(1)), "other is unknown"),
        (lambda w: w.update(weight=torch.zeros(1)), r"weight has the shape \(1,\), needed is \(2, 3\)"),
    ],
)
def test_weights_in_training_must_be_complete(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], Any], words: str
) -> None:
    """Remove or reshape a weight, which would otherwise be repeated until it fills the tensor."""
    model = nn.Linear(3, 2)
    average = WeightAverageExtension(model, 0.9)
    average.save(tmp_path, 0)
    average.load(tmp_path, 0, torch.device("cpu"))
    (path,) = tmp_path.iterdir()
    weights = load_file(path)
    change(weights)
    save_file(weights, path)
    with pytest.raises((CheckpointError, ValueError), match=words):
        average.load(tmp_path, 0, torch.device("cpu"))


@pytest.mark.parametrize(
    "change",
    keep_one_quick(3, [
        lambda s: s.update(updates="x"), lambda s: s.update(parts=[1]), lambda s: s.update(explosion=[1]),
        lambda s: s.update(parts={"a": [1.0, "nn"]}), lambda s: s.pop("loss"), lambda s: s.update(stateless={}),
    ]),
)  # fmt: skip
def test_wrong_types_in_process_counts_are_refused(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    change_json(checkpoint / "progress_0.json", change)
    with pytest.raises(CheckpointError, match=r"progress_0\.json: is damaged: \S+ ") as caught:
        resume_training(checkpoint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("counter", "words"),
    [
        ({"early_stopping_patience_counter": "x"}, "early_stopping_patience_counter must be a whole number"),
        ({"__class__": 1}, "attributes has '__class__'"),
    ],
)
def test_early_stopping_refuses_foreign_attributes(counter: dict[str, Any], words: str) -> None:
    callback = EarlyStoppingCallback(2, 0.0)
    stored = {**callback.state(), "attributes": counter}
    args: Any = SimpleNamespace(
        load_best_model_at_end=True, metric_for_best_model="loss", eval_strategy=IntervalStrategy.STEPS
    )
    state = TrainerState(stateful_callbacks={"EarlyStoppingCallback": stored})
    with pytest.raises(CheckpointError, match=words):
        callback.on_train_begin(args, state, TrainerControl())
