"""Checkpoints of a run: which are whole, and which is the last of those."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adadepth.runs import checkpoints
from adadepth.runs.checkpoints import begin_checkpoint, describe_last_checkpoint, find_checkpoint_error, seal_checkpoint


def test_the_last_whole_checkpoint_is_found_without_reading_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (5, 10, 15, 20):
        begin_checkpoint(tmp_path / f"checkpoint-{step}")
        if step < 20:
            state = {"epoch": 1, "global_step": step, "max_steps": 20, "log_history": [], "best_model_checkpoint": None}
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))
            seal_checkpoint(tmp_path / f"checkpoint-{step}")
    read: list[str] = []
    monkeypatch.setattr(
        checkpoints, "find_checkpoint_error", lambda path: (read.append(path.name), find_checkpoint_error(path))[1]
    )
    assert describe_last_checkpoint(tmp_path) == f"the last complete checkpoint is {tmp_path / 'checkpoint-15'}"
    assert read == ["checkpoint-20", "checkpoint-15"]
