"""Interruptions by Ctrl-C, SIGTERM and SIGHUP during composition and in a task."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from adadepth import tasks
from adadepth.config import ExperimentConfig
from adadepth.training.callbacks import StopCallback
from tests.cli.support import Command
from tests.marks_support import keep_one_quick

TINY = ("--config-name", "act_tiny")
ENDS = [(signal.SIGINT, 130, "error: interrupted\n"), (signal.SIGTERM, 143, ""), (signal.SIGHUP, 129, "")]


COMPOSING = """
import pathlib, signal, sys
from adadepth import run
opened, number = pathlib.Path.open, int(sys.argv.pop())

def opening(path, *args, **kwargs):
    if {"hydra", "conf"} <= {*path.parts} and path.suffix == ".yaml":
        signal.raise_signal(number)
    return opened(path, *args, **kwargs)

pathlib.Path.open = opening
run.main()
"""


@pytest.mark.parametrize(("number", "status", "message"), keep_one_quick(3, ENDS))
def test_a_signal_during_composition_is_an_interruption(
    number: signal.Signals, status: int, message: str, tmp_path: pathlib.Path
) -> None:
    """Send the signal while Hydra opens a file, in the statement whose result its `finally:` closes."""
    program = [sys.executable, "-c", COMPOSING, *TINY, str(int(number))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("number", "status", "message"), ENDS)
def test_a_signal_in_a_task_ends_it_at_once(
    number: signal.Signals, status: int, message: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on: list[bool] = []

    def task(config: ExperimentConfig) -> None:
        signal.raise_signal(number)
        went_on.append(True)

    monkeypatch.setattr(tasks, "run", task)
    handler = signal.getsignal(number)
    result = command(*TINY)
    assert (result.status, result.err) == (status, message)
    assert not went_on
    assert signal.getsignal(number) is handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_at_the_start_stays_ignored(
    number: signal.Signals, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ignore signals as `nohup` and a script that starts a run in the background do."""
    done: list[int | None] = []

    def task(config: ExperimentConfig) -> None:
        signal.raise_signal(number)
        stop = StopCallback()
        with stop.listening():
            signal.raise_signal(number)
        done.append(stop.signal)

    monkeypatch.setattr(tasks, "run", task)
    usual = signal.signal(number, signal.SIG_IGN)
    try:
        assert command(*TINY).status == 0
    finally:
        signal.signal(number, usual)
    assert done == [None]


def test_a_closing_terminal_may_signal_twice() -> None:
    """Send the signal of the shell and that of the system; a run saves its checkpoint all the same."""
    stop = StopCallback()
    with stop.listening():
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert stop.why() == "interrupted by SIGHUP"
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
