"""Fixtures that run the command line in this process, in an empty working directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import adadepth.tasks
from adadepth import run
from adadepth.config import ExperimentConfig
from tests.cli.support import Command, Jobs, Refusal, Result
from tests.figures_support import shorten_runs
from tests.puzzles_support import cache_generated_data


@pytest.fixture(scope="package", autouse=True)
def _shorten_runs() -> Iterator[None]:
    """Skip repeated timing, and draw data only once."""
    with shorten_runs(), cache_generated_data():
        yield


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)

    def execute(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["adadepth/run.py", *arguments])
        status = 0
        try:
            run.main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Result(status, *capfd.readouterr())

    monkeypatch.setenv("HYDRA_FULL_ERROR", os.environ.get("HYDRA_FULL_ERROR", "0"))  # restored afterwards
    return execute


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Replace the tasks by a stub, and return the list of the configurations that would have run."""
    seen: Jobs = []

    def record_job(config: ExperimentConfig) -> float:
        seen.append(config)
        return (config.model.act_penalty - 2e-3) ** 2 + config.seed  # type: ignore[attr-defined]

    monkeypatch.setattr(adadepth.tasks, "run", record_job, raising=False)
    return seen


@pytest.fixture
def refused(command: Command, jobs: Jobs, tmp_path: Path) -> Refusal:
    """Return a function that runs an invalid command and checks it: only lines of errors, nothing run, nothing left."""

    def run_refused(*arguments: str, lines: int = 1) -> str:
        before = sorted(tmp_path.rglob("*"))
        result = command(*arguments)
        assert (result.status, result.out, jobs) == (2, "", [])
        assert result.err.startswith("error: ")
        assert result.err.count("\n") <= lines
        assert sorted(tmp_path.rglob("*")) == before
        return result.err

    return run_refused
