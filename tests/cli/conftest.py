"""Run the command line in this process, in an empty working directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import adadepth.tasks
from adadepth import run
from adadepth.settings import ExperimentConfig
from tests.cli.support import Result
from tests.figures_support import briefly_timed
from tests.puzzles_support import drawn_once


@pytest.fixture(scope="package", autouse=True)
def _briefly() -> Iterator[None]:
    """Leave out what only costs time."""
    with briefly_timed(), drawn_once():
        yield


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
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
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[ExperimentConfig]:
    """Replace the tasks: the list collects the configurations that would have run."""
    seen: list[ExperimentConfig] = []

    def stub(config: ExperimentConfig) -> float:
        seen.append(config)
        return (config.model.act_penalty - 2e-3) ** 2 + config.seed  # type: ignore[attr-defined]

    monkeypatch.setattr(adadepth.tasks, "run", stub, raising=False)
    return seen
