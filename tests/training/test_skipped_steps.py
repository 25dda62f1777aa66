"""Optimiser steps that fp16's gradient scaler skips, counted in the log and on the console, also after a resume."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn
from transformers import TrainerState

from adadepth import tasks
from adadepth.tasks import extensions
from adadepth.training.skipped_steps import SkippedSteps
from tests.configs.support import configured

OVERFLOWS = (1, 2, 5)  # numbers of optimiser steps


def test_steps_without_a_change_are_counted_with_a_real_scaler(tmp_path: Path) -> None:
    Accelerator(cpu=True)
    weight, counter, state = nn.Parameter(torch.ones(())), SkippedSteps(), TrainerState()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    optimizer = AcceleratedOptimizer(torch.optim.SGD([weight], lr=1e-31), scaler=scaler)
    unchanged = 0
    for _ in range(6):
        before = float(weight.detach())
        scaler.scale(weight * 1e30).backward()
        optimizer.step()
        optimizer.zero_grad()
        unchanged += before == float(weight.detach())
        counter.on_step_end(None, state, None, optimizer=optimizer)
    assert unchanged == 2, "1e30 times 2^30 and 2^29 are no float32"
    assert counter.logs() == {"skipped_steps": 2}
    assert list(counter.format_logs(counter.logs())) == ["2 steps skipped"]
    counter.save(tmp_path, 0)
    resumed = SkippedSteps()
    resumed.load(tmp_path, 1, torch.device("cpu"))
    assert resumed.logs() == counter.logs()


def test_a_run_reports_its_skipped_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def count_steps(*_: Any) -> Iterator[SkippedSteps]:
        yield SkippedSteps()

    steps, step = 0, AcceleratedOptimizer.step

    def overflow(self: Any, closure: Any = None) -> None:
        nonlocal steps
        steps += 1
        self._is_overflow = steps in OVERFLOWS
        if not self._is_overflow:
            step(self, closure)

    monkeypatch.setattr(extensions, "_build_settings_extensions", count_steps)  # fp16 needs a GPU
    monkeypatch.setattr(AcceleratedOptimizer, "step", overflow)
    config = configured(
        "act_tiny", "debug=default", "budget=none", f"output_dir={tmp_path}", "trainer.max_steps=6",
        "trainer.logging_steps=2", "trainer.halting_statistics=false",
    )  # fmt: skip
    tasks.run(config)
    out = capsys.readouterr().out.replace("\n  ", " ")  # long lines are wrapped
    assert "fp16: gradients overflowed in 3 of 6 steps, which changed no weight" in out
    assert re.findall(r"(\d) steps skipped", out) == ["2", "2", "3"]
    (log,) = tmp_path.glob("act_tiny/*/metrics.jsonl")
    lines = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    logged = [line["train/skipped_steps"] for line in lines if "train/skipped_steps" in line]
    assert logged == [2, 2, 3]
