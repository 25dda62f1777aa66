"""Checkpoints of a run: which are complete, what is wrong with the others, and which are deleted."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from adadepth.errors import CheckpointError
from adadepth.runs import checkpoints
from adadepth.runs.checkpoints import (
    MANIFEST,
    TRAINER_STATE,
    begin_checkpoint,
    describe_last_checkpoint,
    find_checkpoint_error,
    list_complete_checkpoints,
    read_trainer_state,
    remove_if_disk_full,
    remove_incomplete,
    rotate,
    seal_checkpoint,
)
from adadepth.runtime.files import DiskFullError

from .checkpoint_support import PARTS, write_checkpoint


def list_names(paths: Iterable[Path]) -> list[str]:
    return [path.name for path in paths]


# ---- which are complete


def test_the_last_whole_checkpoint_is_found_without_reading_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (5, 10, 15):
        write_checkpoint(tmp_path, step)
    begin_checkpoint(tmp_path / "checkpoint-20")
    read: list[str] = []
    monkeypatch.setattr(
        checkpoints, "find_checkpoint_error", lambda path: (read.append(path.name), find_checkpoint_error(path))[1]
    )
    assert describe_last_checkpoint(tmp_path) == f"the last complete checkpoint is {tmp_path / 'checkpoint-15'}"
    assert read == ["checkpoint-20", "checkpoint-15"]


def test_a_run_without_a_complete_checkpoint_says_so(tmp_path: Path) -> None:
    begin_checkpoint(tmp_path / "checkpoint-5")
    assert describe_last_checkpoint(tmp_path) == "no checkpoint has been saved yet"


def test_checkpoints_are_ordered_by_step_and_other_folders_are_skipped(tmp_path: Path) -> None:
    for step in (20, 3, 100):
        write_checkpoint(tmp_path, step if step < 100 else 10)
    for name in ("checkpoint-best", "checkpoint-60.bak", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-7").write_text("a file")
    assert list_names(list_complete_checkpoints(tmp_path)) == ["checkpoint-3", "checkpoint-10", "checkpoint-20"]


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (Path.unlink, "its NAME is missing"),
    "cut": (lambda file: file.write_bytes(file.read_bytes()[:9]), "its NAME is damaged (9 bytes of "),
    "changed": (lambda file: file.write_bytes(b"X" + file.read_bytes()[1:]), "its NAME has changed since it was"),
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", [*PARTS, TRAINER_STATE])
def test_a_damaged_part_is_named(tmp_path: Path, name: str, kind: str) -> None:
    checkpoint = write_checkpoint(tmp_path, 7)
    assert find_checkpoint_error(checkpoint) is None
    change, problem = DAMAGES[kind]
    change(checkpoint / name)
    assert (find_checkpoint_error(checkpoint) or "").startswith(problem.replace("NAME", name))
    assert list_complete_checkpoints(tmp_path) == []


@pytest.mark.parametrize(
    "content", ["", "[]", '{"files": 3}', '{"files": {"a": {}}}', '{"files": {"../a": {"bytes": 1}}}']
)
def test_a_damaged_manifest_is_named(tmp_path: Path, content: str) -> None:
    checkpoint = write_checkpoint(tmp_path, 7)
    (checkpoint / MANIFEST).write_text(content)
    problem = find_checkpoint_error(checkpoint)
    assert problem is not None
    assert MANIFEST in problem or "../a" in problem


def test_a_link_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-8").symlink_to(write_checkpoint(tmp_path, 7))
    assert find_checkpoint_error(tmp_path / "checkpoint-8") == "it is a link; replace the link by the folder"


@pytest.mark.parametrize("name", [*PARTS, TRAINER_STATE])
def test_a_checkpoint_without_a_manifest_needs_all_parts(tmp_path: Path, name: str) -> None:
    """Check a checkpoint as older versions wrote it."""
    checkpoint = write_checkpoint(tmp_path, 7)
    (checkpoint / MANIFEST).unlink()
    assert find_checkpoint_error(checkpoint) is None
    (checkpoint / name).unlink()
    expected = "it is incomplete" if name == TRAINER_STATE else f"its {name} is missing"
    assert find_checkpoint_error(checkpoint) == expected


STATES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda s: s.update(global_step=1_000_000), "global_step=1000000, its name 2"),
    (lambda s: s.update(global_step="2"), 'global_step must be a whole number, not "2"'),
    (lambda s: s.update(global_step=-1), "global_step must be at least 0, not -1"),
    (lambda s: s.update(max_steps=1), "global_step=2, beyond max_steps=1"),
    (lambda s: s.pop("max_steps"), "lacks max_steps"),
    (lambda s: s.update(epoch=[1]), "epoch must be a number or null"),
    (lambda s: s.update(log_history={}), "log_history must be a list, not a mapping"),
    (lambda s: s.update(log_history=[1]), "log_history.0 must be a mapping, not 1"),
    (lambda s: s.update(best_model_checkpoint=7), "best_model_checkpoint must be a text or null, not 7"),
    (lambda s: s.update(best_metric="x"), "best_metric must be a number or null"),
    (lambda s: s.update(stateful_callbacks=[1]), "stateful_callbacks must be a mapping"),
    (lambda s: s["stateful_callbacks"].update(TrainerControl=3), "stateful_callbacks.TrainerControl"),
    (lambda s: s.update(num_train_epochs=math.pi), "num_train_epochs must be a whole number"),
    (lambda s: s.update(unknown=3), "has unknown keys: unknown"),
]


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize(("change", "words"), STATES, ids=[words for _, words in STATES])
def test_wrong_types_or_steps_in_the_trainer_state_are_named(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], words: str, has_manifest: bool
) -> None:
    """Check checkpoints whose manifest is right, because whoever hands one on can seal it, and those without one."""
    checkpoint = write_checkpoint(tmp_path, 2)
    state = json.loads((checkpoint / TRAINER_STATE).read_text())
    change(state)
    (checkpoint / TRAINER_STATE).write_text(json.dumps(state))
    seal_checkpoint(checkpoint) if has_manifest else (checkpoint / MANIFEST).unlink()
    problem = find_checkpoint_error(checkpoint)
    assert problem is not None
    assert problem.startswith("its trainer_state.json ")
    assert words in problem


def test_a_truncated_trainer_state_is_no_json(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, 2)
    (checkpoint / TRAINER_STATE).write_text('{"epoch"')
    with pytest.raises(CheckpointError, match=r"trainer_state\.json: is damaged: not JSON"):
        read_trainer_state(checkpoint)
    seal_checkpoint(checkpoint)
    assert (find_checkpoint_error(checkpoint) or "").startswith("its trainer_state.json is damaged (not JSON: ")


# ---- which are deleted


def test_only_remains_of_a_kill_are_removed(tmp_path: Path) -> None:
    for step in (5, 7, 9):
        write_checkpoint(tmp_path, step)
    begin_checkpoint(tmp_path / "checkpoint-8")
    (tmp_path / "checkpoint-8" / "optimizer.pt").write_bytes(b"half")
    (tmp_path / "checkpoint-7" / "optimizer.pt").write_bytes(b"cut")
    (tmp_path / "checkpoint-9" / MANIFEST).write_text("{")
    (tmp_path / "checkpoint-60.bak").mkdir()
    remove_incomplete(tmp_path)
    names = ["checkpoint-5", "checkpoint-60.bak", "checkpoint-7", "checkpoint-9"]
    assert sorted(list_names(tmp_path.iterdir())) == names


@pytest.mark.parametrize(("limit", "best", "expected"), [
    (1, 2, [2, 7]), (1, None, [7]), (2, 2, [2, 7]), (2, None, [6, 7]), (3, 2, [2, 6, 7]), (None, None, [2, 5, 6, 7]),
])  # fmt: skip
def test_the_limit_excludes_the_newest_and_the_best(
    tmp_path: Path, limit: int | None, best: int | None, expected: list[int]
) -> None:
    for step in (2, 5, 6, 7):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-1.bak").mkdir()
    rotate(tmp_path, limit, {tmp_path / f"checkpoint-{step}" for step in (7, best) if step is not None})
    assert list_names(checkpoints.checkpoints(tmp_path)) == [f"checkpoint-{step}" for step in expected]
    assert (tmp_path / "checkpoint-1.bak").is_dir()


def test_a_deleted_link_leaves_its_target(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint-1").symlink_to(write_checkpoint(tmp_path, 7))
    newest = write_checkpoint(tmp_path / "run", 2)
    rotate(tmp_path / "run", 1, {newest})
    assert list_names((tmp_path / "run").iterdir()) == ["checkpoint-2"]
    assert find_checkpoint_error(tmp_path / "checkpoint-7") is None


@pytest.mark.parametrize("is_main", [True, False])
def test_the_main_process_removes_a_checkpoint_that_does_not_fit_on_the_disk(tmp_path: Path, is_main: bool) -> None:
    begin_checkpoint(tmp_path / "checkpoint-5")
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DiskFullError, match="checkpoint-5"), remove_if_disk_full(tmp_path / "checkpoint-5", is_main):
        raise full
    assert (tmp_path / "checkpoint-5").exists() is not is_main
    with pytest.raises(ZeroDivisionError), remove_if_disk_full(tmp_path / "checkpoint-5"):
        raise ZeroDivisionError
