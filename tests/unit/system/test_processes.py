"""Several processes of a run: who speaks, and what becomes of them without their launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adadepth.errors import ConfigError
from adadepth.system import processes

ROOT = Path(__file__).resolve().parents[3]
WORKER = """
import pathlib, signal, sys, time
from adadepth.system.processes import end_with_launcher
def ended(number, frame):
    pathlib.Path(sys.argv[1]).write_text(str(number))
    raise SystemExit
signal.signal(signal.SIGTERM, ended)
end_with_launcher()
print("ready", flush=True)
time.sleep(600)
"""
LAUNCHER = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {WORKER!r}, sys.argv[1]])
"""


def test_a_process_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2"}
    told = tmp_path / "signal"
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(told)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    launcher.kill()
    launcher.wait()
    for _ in range(3000):
        if told.exists() and told.read_text():
            break
        time.sleep(0.1)
    assert told.read_text() == str(int(signal.SIGTERM))


@pytest.mark.parametrize(("rank", "expected"), [("0", "error: a mistake\n"), ("1", "error: process 1: a mistake\n")])
def test_another_process_speaks_only_if_the_first_does_not(
    rank: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    waited: list[float] = []
    monkeypatch.setattr(processes.time, "sleep", waited.append)
    with pytest.raises(SystemExit) as end:
        processes.exit_with("a mistake", 2)
    assert (end.value.code, capsys.readouterr().err, len(waited)) == (2, expected, int(rank))


def test_what_no_launcher_sets_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    processes.check_launcher()
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match=r"^WORLD_SIZE=two: must be a whole number"):
        processes.check_launcher()
    assert not processes.is_one_of_several()
