"""Runs that are killed while they write: a finished run has all files, and the next command completes others."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adadepth import tasks
from adadepth.errors import CheckpointError
from adadepth.report import page_writer
from adadepth.runs.directory import read_record
from adadepth.runtime import files
from tests.configs.support import configured
from tests.training.finetune_support import SMALL

SHORT = ("debug=default", "trainer.max_steps=2", "trainer.save_steps=1", "trainer.eval_steps=1", *SMALL)


def execute(folder: Path, *overrides: str, root: str = "ponder_tiny") -> None:
    tasks.run(configured(root, *SHORT, "trainer.disable_tqdm=true", f"output_dir={folder}", *overrides))


def list_runs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.rglob("run.json"))


def list_files(run: Path) -> set[str]:
    return {
        path.relative_to(run).as_posix()
        for path in run.rglob("*")
        if path.is_file() and path.name != ".lock" and path.relative_to(run).parts[0] != "evaluations"
    }


@contextmanager
def copy_before_each_write(folder: Path, copies: Path) -> Iterator[list[Path]]:
    """Copy a folder before each of its files is replaced, which is the state after a kill at that moment."""
    states: list[Path] = []
    replace = files.replace_atomically

    @contextmanager
    def copy_before(path: Path) -> Iterator[Path]:
        if any((run / "model").exists() for run in list_runs(folder)):
            states.append(copies / f"{len(states):03}")
            shutil.copytree(folder, states[-1])
        with replace(path) as temporary:
            yield temporary

    with pytest.MonkeyPatch.context() as patch:
        for module in ("runtime.files", "report.export"):
            patch.setattr(f"adadepth.{module}.replace_atomically", copy_before)
        yield states


@pytest.fixture(scope="module")
def killed_states(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """Return a whole run, and the states that a kill at each write after training would leave."""
    folder = tmp_path_factory.mktemp("killed")
    with copy_before_each_write(folder / "out", folder / "states") as states:
        execute(folder / "out")
    return folder / "out", states


def test_the_finished_status_is_written_last(killed_states: tuple[Path, list[Path]]) -> None:
    folder, states = killed_states
    (run,) = list_runs(folder)
    assert read_record(run)["status"] == "finished"
    assert "run finished" in (run / "report.html").read_text()
    assert len(states) > 10
    statuses = [read_record(*list_runs(state))["status"] for state in states]
    assert set(statuses) == {"running", "reporting"}
    assert list_files(*list_runs(states[-1])) == list_files(run)


@pytest.mark.slow
def test_an_evaluation_a_prediction_and_a_summary_are_finished_last(
    killed_states: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    (run,) = list_runs(shutil.copytree(killed_states[0], tmp_path / "out"))
    checkpoint = f"checkpoint={run}"
    for command in (
        ("mode=evaluate", checkpoint),
        ("mode=predict", checkpoint, "text=a film"),
        ("seeds=2", "trainer.max_steps=1"),
    ):
        execute(tmp_path / "out", *command)
    runs = [path for path in list_runs(tmp_path / "out") if path != run]
    assert len(runs) == 5
    for path in runs:
        times = {name: (path / name).stat().st_mtime_ns for name in list_files(path)}
        assert (read_record(path)["status"], max(times.values())) == ("finished", times["run.json"]), path
        assert "report.html" in times


def find_reporting_state(states: list[Path], copy: Path) -> Path:
    state = next(state for state in states if read_record(*list_runs(state))["status"] == "reporting")
    (run,) = list_runs(shutil.copytree(state, copy))
    assert not (run / "report.html").exists()
    return run


def test_a_run_without_its_report_is_finished_by_a_resume(
    killed_states: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    run = find_reporting_state(killed_states[1], tmp_path / "out")
    missing = f"its report is missing, and python -m adadepth mode=report run={run} writes it"
    with pytest.raises(CheckpointError, match=re.escape(missing)):
        execute(tmp_path / "out", f"resume={run}")
    execute(tmp_path / "out", "mode=report", f"run={run}")
    assert read_record(run)["status"] == "finished"
    assert list_files(run) == list_files(*list_runs(killed_states[0]))
    (run / "report.html").unlink()  # as a killed run of an earlier version
    with pytest.raises(CheckpointError, match=re.escape(missing)):
        execute(tmp_path / "out", f"resume={run}")


def test_a_run_with_a_failed_report_can_be_finished(
    killed_states: tuple[Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = find_reporting_state(killed_states[1], tmp_path / "out")

    def fail(*_: Any) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(page_writer, "_write_tables", fail)
        with pytest.raises(OSError, match="no room"):
            execute(tmp_path / "out", "mode=report", f"run={run}")
    assert read_record(run)["status"] == "reporting"
    execute(tmp_path / "out", "mode=report", f"run={run}")
    assert read_record(run)["status"] == "finished"


@pytest.mark.slow
def test_a_killed_summary_of_seeds_is_finished_by_the_next_command(tmp_path: Path) -> None:
    with copy_before_each_write(tmp_path / "out", tmp_path / "states") as states:
        execute(tmp_path / "out", "seeds=2")
    (summary,) = (path.parent for path in tmp_path.glob("out/*/*/seeds.json"))
    expected = {run.name: list_files(run) for run in list_runs(tmp_path / "out")}
    shutil.rmtree(tmp_path / "out")
    for state in [*states[:-12:9], *states[-12:]]:
        shutil.copytree(state, tmp_path / "out")
        execute(tmp_path / "out", f"resume={summary}")
        runs = {run: read_record(run) for run in list_runs(tmp_path / "out")}
        statuses = [record["status"] for record in runs.values()]
        assert statuses.count("finished") == 3, state
        assert [record["error"] for record in runs.values() if record["status"] != "finished"] in (
            [],
            ["killed before its first checkpoint"],
        ), state
        for run in runs:
            if run.name in expected and runs[run]["status"] == "finished":
                assert list_files(run) == expected[run.name], state
        shutil.rmtree(tmp_path / "out")
