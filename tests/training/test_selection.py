"""The best model of a run: by the metric's own direction, and where the metric is undefined in some evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState
from transformers.trainer_utils import SaveStrategy

from adadepth.errors import ConfigError
from adadepth.training.callbacks import StopCallback
from adadepth.training.checkpointing import CheckpointingTrainer
from tests.training.finetune_support import SMALL
from tests.training.support import run_debug

TEXT = "the cat sat on a mat and then it slept for some hours in the warm sun"


def list_overrides(tmp_path: Path, *overrides: str) -> tuple[str, ...]:
    folder = tmp_path / "table"
    folder.mkdir()
    for split, count in (("train", 9), ("validation", 7)):
        rows: list[dict[str, Any]] = [
            {"sentence": " ".join(TEXT.split()[row % 9 :][: 3 + row % 6]), "label": row % 2, "idx": row}
            for row in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return (
        "model=ponder_albert_mini", *SMALL, "tokenizer.path=null", "dataset.source=local", f"dataset.path={folder}",
        f"dataset.cache_dir={tmp_path}/cache", "dataset.evaluation_splits=[validation]", "dataset.test_splits=[]",
        "dataset.submission=[]", "trainer.per_device_train_batch_size=4", "trainer.logging_steps=1",
        "trainer.eval_steps=1", "trainer.save_steps=1", "trainer.max_steps=4", "trainer.eval_on_start=false",
        *overrides,
    )  # fmt: skip


@pytest.mark.slow
def test_selection_by_loss_keeps_the_lowest_loss(tmp_path: Path) -> None:
    """Check for huggingface/transformers#31142: the worst model was kept where a loss selects among settings for a
    score.
    """
    overrides = list_overrides(tmp_path, "trainer.metric_for_best_model=eval_loss", "trainer.learning_rate=0.01")
    directory, _ = run_debug(tmp_path / "out", "ponder_sst2", *overrides)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["eval/loss"] for line in lines if "eval/loss" in line}
    assert losses[1] > losses[4]
    record = json.loads((directory / "run.json").read_text())
    assert record["best_checkpoint"] == f"checkpoint-{min(losses, key=losses.__getitem__)}"


def test_an_undefined_metric_is_no_improvement_and_no_crash(tmp_path: Path) -> None:
    """Check for huggingface/transformers#11555, the correlation of constants: here one evaluated value, which never
    varies.
    """
    overrides = list_overrides(
        tmp_path, "dataset.problem=regression", "dataset.metrics=[pearson]", "dataset.labels=null",
        "trainer.metric_for_best_model=eval_pearson", "dataset.max_evaluation_examples=1", "optimise=eval/pearson",
        "trainer.early_stopping_patience=2", "trainer.max_steps=8",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"^optimise=eval/pearson: undefined in this run: .*constant"):
        run_debug(tmp_path / "out", "ponder_sst2", *overrides)
    (directory,) = (tmp_path / "out").glob("*/*")
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines if "eval/loss" in line} == {1, 2, 3}, "two evaluations after the first"


@pytest.mark.parametrize("deferred", [False, True])
def test_the_best_evaluation_is_one_with_a_checkpoint(deferred: bool) -> None:
    """Check save_steps=2 with eval_steps=1, where the lowest loss at step 3 has no weights to load."""
    stop = StopCallback()
    trainer: Any = object.__new__(CheckpointingTrainer)
    trainer.extensions, trainer.callback_handler = [], SimpleNamespace(callbacks=[stop])
    trainer.args = SimpleNamespace(
        metric_for_best_model="eval_loss", greater_is_better=False, load_best_model_at_end=True,
        save_strategy=SaveStrategy.STEPS,
    )  # fmt: skip
    trainer.state, trainer.control = TrainerState(), TrainerControl()
    for step, loss in enumerate((0.9, 0.8, 0.1, 0.5), start=1):
        trainer.state.global_step, is_saved = step, step % 2 == 0
        trainer.control.should_save, stop.has_deferred_save = is_saved and not deferred, is_saved and deferred
        trainer._determine_best_metric({"eval_loss": loss}, None)
    assert (trainer.state.best_global_step, trainer.state.best_metric) == (4, 0.5)
