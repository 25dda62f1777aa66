"""Benchmarks of the first hour on a device: their steps are limited in time, stored, and reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adadepth.contrib.estimate.estimate import estimate_training
from tests.configs.support import configured
from tests.scripts_support import ROOT, load_script


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def make_row(mode: str, hidden: int, batch: int, speedup: float) -> dict[str, Any]:
    return {"mode": mode, "hidden": hidden, "batch": batch, "length": 100, "ragged": {"speedup": speedup}}


def test_ragged_pays_from_the_size_where_all_larger_are_faster(
    benchmarks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load_script("benchmarks/first_hour_steps.py", monkeypatch)
    rows = [make_row("inference", 10, batch, speedup) for batch, speedup in ((1, 1.1), (2, 0.9), (4, 1.2), (8, 1.5))]
    rows += [make_row("training", 10, 4, 1.2), make_row("training", 10, 8, 0.9)]
    assert script.find_crossovers(rows) == {"inference": 12 * 10**2 * 4 * 100, "training": None}


def test_the_published_runs_are_configurations(
    benchmarks: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = load_script("benchmarks/first_hour_steps.py", monkeypatch)
    plan = script.list_steps(False, script.DataFolders(str(tmp_path), str(tmp_path), str(tmp_path)))
    commands = [step.command(10, tmp_path) for step in plan]
    runs = [command[2:] for command in commands if command[0] == "adadepth/run.py"]
    assert [name for name, *_ in runs] == ["act_tiny", *["par_wikitext2"] * 2, "trm_sudoku_extreme", "trm_maze_hard"]
    for name, *overrides in runs:
        config = configured(name, *overrides)
        assert (config.trainer.time_budget_minutes, config.dataset.path) == (7, str(tmp_path))


@pytest.mark.slow
def test_models_of_full_size_can_be_estimated(benchmarks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in load_script("benchmarks/family_steps.py", monkeypatch).CASES.values():
        config = configured(*case.split(), "mode=estimate", "estimate.device=A100")
        assert estimate_training(config)["fits"], case


@pytest.mark.slow  # it waits for a limit
def test_a_step_that_fails_or_is_cut_stops_no_other_and_runs_again(
    benchmarks: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = load_script("benchmarks/first_hour.py", monkeypatch)
    monkeypatch.setattr(script, "MIN_SECONDS", 0.0)
    codes = {
        "good": "print('fine')",
        "bad": "print('some more'); raise SystemExit('no such thing')",
        "long": "import time; time.sleep(60)",
    }

    def plan(**changed: str) -> list[Any]:
        code = codes | changed
        read = lambda folder: iter([{"what": "x", "value": 1, "unit": "", "n": 1, "low": None, "high": None}])  # noqa: E731
        return [
            script.Step(name, name, 1, lambda minutes, folder, name=name: ["-c", code[name]], read, "") for name in code
        ]

    results = script.run_steps(tmp_path, plan(), 9 / 3600, os.environ)
    assert {name: result["status"] for name, result in results.items()} == {
        "good": "done",
        "bad": "failed",
        "long": "cut",
    }
    assert results["bad"]["error"] == "no such thing"
    assert sum(result["seconds"] for result in results.values()) < 9 + 3
    again = script.run_steps(tmp_path, plan(good="raise SystemExit(1)", long="print('quick')"), 9 / 3600, os.environ)
    assert again["good"] == results["good"]
    assert {name: result["status"] for name, result in again.items()} == {
        "good": "done",
        "bad": "failed",
        "long": "done",
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_report_has_all_steps_and_the_same_command_resumes(tmp_path: Path) -> None:
    def run(*steps: str) -> subprocess.CompletedProcess[str]:
        command = ["benchmarks/first_hour.py", "--device", "cpu", "--hours", "0.2", "--folder", str(tmp_path)]
        return subprocess.run(
            [sys.executable, *command, "--only", *steps], cwd=ROOT, capture_output=True, text=True, check=False
        )

    assert run("training_step", "ragged").returncode == 0
    first = json.loads((tmp_path / "first_hour.json").read_text())
    assert [entry["status"] for entry in first["steps"].values()] == ["done", "done"]
    written = (tmp_path / "ragged" / "found.json").stat().st_mtime_ns
    assert run("training_step", "ragged", "family_steps", "parity", "act").returncode == 0
    second = json.loads((tmp_path / "first_hour.json").read_text())
    assert (tmp_path / "ragged" / "found.json").stat().st_mtime_ns == written
    assert second["steps"]["ragged"] == first["steps"]["ragged"]
    assert {"torch", "transformers"} <= set(second["versions"])
    figures = [entry for step in second["steps"].values() for entry in step["figures"]]
    assert all(entry["value"] is not None for entry in figures)
    timed = [entry for entry in figures if entry["unit"] == "ms"]
    assert timed
    assert all(entry["n"] and entry["low"] <= entry["value"] <= entry["high"] for entry in timed)
    page = (tmp_path / "report.html").read_text()
    assert "model.execution=ragged" in page
    assert all(f'id="{name}"' in page for name in second["steps"])
    assert "http" not in page.replace("http://www.w3.org", "")
