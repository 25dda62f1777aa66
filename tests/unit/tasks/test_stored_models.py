"""Stored models and runs, found and checked by their files alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adadepth.config import TokenizerConfig
from adadepth.errors import CheckpointError
from adadepth.runs.checkpoints import begin_checkpoint
from adadepth.runs.directory import read_record
from adadepth.runs.lock import lock_directory
from adadepth.runtime.files import describe_files
from adadepth.tasks import stored_models
from tests.configs.support import configured, write_run
from tests.models_support import make_small_multi_exit
from tests.unit.runs.checkpoint_support import write_checkpoint


def make_arguments(**changes: Any) -> Any:
    values = {"world_size": 1, "process_index": 0, "load_best_model_at_end": False, "parallel_mode": None}
    return SimpleNamespace(**values | changes)


def write_record(run: Path, **record: Any) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / "run.json").write_text(json.dumps(record))
    return run


# ---- the checkpoint to resume from


def test_the_newest_complete_checkpoint_is_resumed_and_damaged_newer_ones_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stored_models.find_resumable_checkpoint(tmp_path, make_arguments()) is None
    checkpoints = [write_checkpoint(tmp_path / "checkpoints", step) for step in (2, 4, 6)]
    assert stored_models.find_resumable_checkpoint(tmp_path, make_arguments()) == checkpoints[2]
    (checkpoints[2] / "optimizer.pt").unlink()
    assert stored_models.find_resumable_checkpoint(tmp_path, make_arguments()) == checkpoints[1]
    message = f"skipped {checkpoints[2]}: its optimizer.pt is missing; resuming from checkpoint-4"
    assert message in capsys.readouterr().out


def test_a_run_with_damaged_checkpoints_only_cannot_resume(tmp_path: Path) -> None:
    begin_checkpoint(tmp_path / "checkpoints" / "checkpoint-2")
    with pytest.raises(CheckpointError) as raised:
        stored_models.find_resumable_checkpoint(tmp_path, make_arguments())
    expected = (
        f"resume={tmp_path}: it has no complete checkpoint: {tmp_path}/checkpoints/checkpoint-2: it is incomplete"
    )
    assert str(raised.value) == expected


def test_a_run_without_a_checkpoint_cannot_resume(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"it has no complete checkpoint yet$"):
        stored_models.require_checkpoint(tmp_path, make_arguments())


@pytest.mark.parametrize(("damage", "problem"), [
    ("nothing", None), ("optimizer.pt", "its best checkpoint checkpoint-2 is damaged: its optimizer.pt is missing"),
    ("folder", "its best checkpoint checkpoint-2 is damaged: the checkpoint is missing"),
])  # fmt: skip
def test_the_best_checkpoint_must_be_complete_if_it_is_loaded_at_the_end(
    tmp_path: Path, damage: str, problem: str | None
) -> None:
    best = write_checkpoint(tmp_path / "checkpoints", 2)
    newest = write_checkpoint(tmp_path / "checkpoints", 4, best_model_checkpoint=str(best))
    if damage == "folder":
        best.rename(tmp_path / "away")
    elif damage != "nothing":
        (best / damage).unlink()
    assert stored_models.find_resumable_checkpoint(tmp_path, make_arguments()) == newest
    arguments = make_arguments(load_best_model_at_end=True)
    if problem is None:
        assert stored_models.find_resumable_checkpoint(tmp_path, arguments) == newest
        return
    with pytest.raises(CheckpointError, match=f"checkpoint-4: {problem}"):
        stored_models.find_resumable_checkpoint(tmp_path, arguments)


def test_a_damaged_log_stops_a_resume(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoints", 2)
    (tmp_path / "metrics.jsonl").write_text('{broken\n{"step": 1, "time": 0.5}\n')
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: line 1 is damaged"):
        stored_models.find_resumable_checkpoint(tmp_path, make_arguments())


# ---- killed and finished runs


def test_a_killed_run_is_recorded_as_interrupted_unless_it_is_alive(tmp_path: Path) -> None:
    run = write_record(tmp_path, status="running")
    with lock_directory(run):
        stored_models.record_abandoned_run(run)
        assert read_record(run)["status"] == "running"
    stored_models.record_abandoned_run(run)
    record = read_record(run)
    assert (record["status"], record["error"]) == ("interrupted", "killed before its first checkpoint")
    write_record(run, status="finished")
    stored_models.record_abandoned_run(run)
    assert stored_models.is_finished(run)


# ---- the files of a model


def test_a_model_of_a_run_must_have_the_files_of_its_record(tmp_path: Path) -> None:
    run = write_run(tmp_path, configured("act_tiny"))
    config = configured("act_tiny", "mode=evaluate", f"checkpoint={run}", f"output_dir={tmp_path}")
    (run / "model" / "config.json").write_text("{}")
    (run / "model" / "README.md").write_text("a card")
    write_record(run, status="finished", saved={"model": describe_files(run / "model")})
    (run / "model" / "README.md").unlink()
    assert stored_models.resolve_model_path(config) == str(run / "model"), "the model card may be missing"
    (run / "model" / "tokenizer.json").unlink()
    assert stored_models.resolve_model_path(config) == str(run / "model"), "another tokenizer may be configured"
    (run / "model" / "config.json").write_text("{ }")
    with pytest.raises(CheckpointError) as raised:
        stored_models.resolve_model_path(config)
    assert str(raised.value) == f"checkpoint={run}/model: its config.json is damaged (3 bytes of 2)"


def test_the_step_of_weights_is_that_of_their_checkpoint_or_of_their_run(tmp_path: Path) -> None:
    assert stored_models.find_trained_step(str(write_checkpoint(tmp_path, 6))) == 6
    run = write_record(tmp_path / "run", steps={"done": 9, "planned": 9}, selected={"step": 4})
    assert stored_models.find_trained_step(str(run / "model")) == 4
    write_record(run, steps={"done": 9, "planned": 9})
    assert stored_models.find_trained_step(str(run / "model")) == 9
    write_record(run)
    assert stored_models.find_trained_step(str(run / "model")) is None
    assert stored_models.find_trained_step("some/name") is None


def test_weights_must_be_finite() -> None:
    model = make_small_multi_exit()
    stored_models.check_weights(model, "there")
    name, weight = next(iter(model.named_parameters()))
    weight.data.view(-1)[0] = float("nan")
    with pytest.raises(CheckpointError) as raised:
        stored_models.check_weights(model, "there")
    assert str(raised.value) == f"checkpoint=there: its weights {name!r} are not finite"


# ---- the tokenizer


@pytest.mark.parametrize(("count", "size", "is_refused"), [
    (5, 5, False), (6, None, False), (None, 5, False), (6, 5, True),
])  # fmt: skip
def test_a_tokenizer_may_not_have_more_tokens_than_the_model(
    count: int | None, size: int | None, is_refused: bool
) -> None:
    config, model = configured("act_tiny", "tokenizer.path=mine"), SimpleNamespace(vocabulary_size=size)
    tokenizer = None if count is None else range(count)
    if not is_refused:
        stored_models.check_vocabulary(config, model, tokenizer)
        return
    with pytest.raises(CheckpointError, match=r"^tokenizer\.path=mine: it has 6 tokens, the model 5; use the tokenize"):
        stored_models.check_vocabulary(config, model, tokenizer)


def test_the_tokenizer_of_a_checkpoint_is_read_unless_another_is_configured() -> None:
    expected = TokenizerConfig(path="there")
    assert stored_models.choose_checkpoint_tokenizer(configured("act_tiny", "tokenizer.path=null"), "there") == expected
    pretrained = configured("act_tiny", "model.pretrained=a", "tokenizer.path=a")
    assert stored_models.choose_checkpoint_tokenizer(pretrained, "there") == expected
    configured_one = configured("act_tiny", "tokenizer.path=mine")
    assert stored_models.choose_checkpoint_tokenizer(configured_one, "there") == configured_one.tokenizer


def test_settings_of_a_checkpoint_without_a_run_are_those_of_the_model(tmp_path: Path) -> None:
    config = configured("act_tiny", "mode=evaluate", f"checkpoint={os.fspath(tmp_path)}")
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=48, act_epsilon=0.25))
    recorded: Any = stored_models.record_loaded_settings(config, model).model
    assert (recorded.hidden_size, recorded.act_epsilon) == (48, 0.25)
    assert recorded.num_hidden_layers == config.model.num_hidden_layers  # type: ignore[attr-defined]
