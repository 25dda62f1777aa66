"""The profiler `trainer.profiler=true`, which changes no training and writes a trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.runs_support import execute_run, read_logged

SHORT = (
    "--config-name", "act_tiny", "debug=default", "trainer.max_steps=6", "trainer.eval_strategy=no",
    "trainer.eval_on_start=false", "trainer.load_best_model_at_end=false", "trainer.save_strategy=no",
)  # fmt: skip


@pytest.mark.slow
def test_a_profiled_run_learns_the_same_and_leaves_a_trace(tmp_path: Path) -> None:
    usual = execute_run(tmp_path / "usual", *SHORT)
    traced = execute_run(tmp_path / "traced", *SHORT, "trainer.profiler=true")
    assert read_logged(traced, "train/loss") == read_logged(usual, "train/loss")
    assert (traced / "model/model.safetensors").read_bytes() == (usual / "model/model.safetensors").read_bytes()
    assert not (usual / "trace.json.gz").exists()
    events = json.loads(gzip.decompress((traced / "trace.json.gz").read_bytes()))["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert {"name", "ts", "dur", "pid", "tid"} <= set(complete[0])
    steps = {event["name"] for event in complete if event["name"].startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}
