"""Several processes of a run: which one writes messages, and what they do without their launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adadepth.errors import ConfigError
from adadepth.runtime import distributed

ROOT = Path(__file__).resolve().parents[3]
# Variables that torchrun sets for the first of two processes.
GROUP = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
WORKER = """
import pathlib, signal, sys, time
from adadepth.runtime.distributed import stop_when_launcher_exits
def ended(number, frame):
    pathlib.Path(sys.argv[1]).write_text(str(number))
    raise SystemExit
signal.signal(signal.SIGTERM, ended)
stop_when_launcher_exits()
print("ready", flush=True)
time.sleep(600)
"""
LAUNCHER = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {WORKER!r}, sys.argv[1]])
"""


@pytest.mark.slow
def test_a_process_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2"}
    signal_file = tmp_path / "signal"
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(signal_file)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    launcher.kill()
    launcher.wait()
    for _ in range(3000):
        if signal_file.exists() and signal_file.read_text():
            break
        time.sleep(0.1)
    assert signal_file.read_text() == str(int(signal.SIGTERM))


@pytest.mark.parametrize(("rank", "expected"), [("0", "error: a mistake\n"), ("1", "error: process 1: a mistake\n")])
def test_another_process_reports_an_error_only_if_the_main_one_does_not(
    rank: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**GROUP, "RANK": rank}.items():
        monkeypatch.setenv(name, value)
    waited: list[float] = []
    monkeypatch.setattr(distributed.time, "sleep", waited.append)
    with pytest.raises(SystemExit) as end:
        distributed.exit_with_error("a mistake", 2)
    assert (end.value.code, capsys.readouterr().err, len(waited)) == (2, expected, int(rank))


@pytest.mark.parametrize(("environment", "message"), [
    ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2: needs RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, which the "),
    ({"LOCAL_RANK": "0"}, "LOCAL_RANK=0: needs RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, which the "),
    ({"RANK": "1"}, "RANK=1: needs LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, which the "),
], ids=str)  # fmt: skip
def test_variables_that_no_launcher_sets_are_a_one_line_error(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"^{message}"):
        distributed.check_launcher()


@pytest.mark.parametrize("environment", [{}, GROUP, {**GROUP, "LOCAL_WORLD_SIZE": "1", "RANK": "1"}, {"RANK": "0"},
                                         {**GROUP, "WORLD_SIZE": "1"}], ids=str)  # fmt: skip
def test_variables_of_launchers_are_accepted(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    distributed.check_launcher()
    assert distributed.is_distributed() == (environment.get("WORLD_SIZE") == "2")
