"""The metric that a run returns, and the report of a run that was killed while it wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adadepth.errors import CheckpointError, ConfigError
from adadepth.runs.directory import FINISHED, REPORTING, read_record
from adadepth.tasks import report
from tests.configs.support import configured

METRICS = {"eval/loss": 0.5, "eval/score": 0.75, "train/loss": 2.0}


def make_config(optimise: str) -> Any:
    return SimpleNamespace(optimise=optimise, dataset=configured("act_cola").dataset)


def test_the_metric_of_a_run_is_that_of_its_setting() -> None:
    assert report.select_objective(make_config("eval/score"), METRICS) == 0.75


@pytest.mark.parametrize(("optimise", "problem"), [
    ("eval/los", "not a metric of this run (did you mean 'eval/loss'?); it has eval/loss, eval/score"),
    ("train/x", "not a metric of this run (did you mean 'train/loss'?); it has train/loss"),
    ("eval/matthews", "undefined in this run: "),
])  # fmt: skip
def test_a_metric_that_a_run_lacks_is_a_one_line_error(optimise: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        report.select_objective(make_config(optimise), METRICS)
    assert str(raised.value).startswith(f"optimise={optimise}: {problem}")


def write_run(folder: Path, status: str) -> Path:
    (folder / "run.json").write_text(json.dumps({"status": status, "error": "KeyboardInterrupt: "}))
    return folder


@pytest.fixture
def report_directories(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the writing of pages by a stub, and return the list of its directories."""
    directories: list[Path] = []

    def record_page(directory: Path) -> Any:
        directories.append(directory)
        return SimpleNamespace(verdict=None)

    monkeypatch.setattr(report, "write_and_draw", record_page)
    return directories


@pytest.mark.parametrize(("status", "is_written"), [(REPORTING, True), ("interrupted", False), (FINISHED, False)])
def test_only_a_report_that_was_interrupted_is_finished(
    tmp_path: Path, report_directories: list[Path], status: str, is_written: bool
) -> None:
    report.finish_report(write_run(tmp_path, status))
    assert report_directories == [tmp_path] * is_written
    expected = (FINISHED, None) if is_written else (status, "KeyboardInterrupt: ")
    assert (read_record(tmp_path)["status"], read_record(tmp_path)["error"]) == expected


def test_a_report_through_a_link_is_refused(tmp_path: Path, report_directories: list[Path]) -> None:
    write_run(tmp_path, REPORTING)
    (tmp_path / "report.html").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"report\.html.*is a link"):
        report.finish_report(tmp_path)
    assert (report_directories, read_record(tmp_path)["status"]) == ([], REPORTING)
