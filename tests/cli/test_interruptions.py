"""Ctrl-C, SIGTERM and SIGHUP at moments at which a library would lose them."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from adadepth import tasks
from adadepth.settings import ExperimentConfig
from adadepth.training.callbacks import StopCallback
from tests.cli.support import Result
from tests.composition_support import compose_anew

TINY = ("--config-name", "act_tiny")
ENDS = [(signal.SIGINT, 130, "error: interrupted\n"), (signal.SIGTERM, 143, ""), (signal.SIGHUP, 129, "")]


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[str]]]:
    """Send this process signals while Hydra opens a file, in the statement whose result its `finally:` closes."""
    opened = pathlib.Path.open

    def prepare(number: signal.Signals, times: int = 1) -> list[str]:
        sent: list[str] = []
        compose_anew()

        def opening(path: pathlib.Path, *args: Any, **kwargs: Any) -> Any:
            if {"hydra", "conf"} <= {*path.parts} and path.suffix == ".yaml" and len(sent) < times:
                sent.append(path.name)
                signal.raise_signal(number)
            return opened(path, *args, **kwargs)

        monkeypatch.setattr(pathlib.Path, "open", opening)
        return sent

    yield prepare
    compose_anew()  # what a composition that was signalled has left


@pytest.mark.parametrize(("number", "status", "message"), ENDS)
def test_a_signal_during_composition_is_an_interruption(
    number: signal.Signals, status: int, message: str, command: Callable[..., Result],
    signalled: Callable[..., list[str]], jobs: list[ExperimentConfig], tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    usual = [signal.getsignal(each) for each, *_ in ENDS]
    sent = signalled(number)
    found = command(*TINY)
    assert sent
    assert (found.status, found.err) == (status, message)
    assert not jobs
    assert not list(tmp_path.iterdir())
    assert [signal.getsignal(each) for each, *_ in ENDS] == usual


@pytest.mark.parametrize(("number", "status", "message"), ENDS)
def test_a_signal_while_the_first_of_two_jobs_is_composed_ends_both(
    number: signal.Signals, status: int, message: str, command: Callable[..., Result],
    signalled: Callable[..., list[str]], jobs: list[ExperimentConfig],
) -> None:  # fmt: skip
    assert signalled(number) == []
    found = command(*TINY, "-m", "seed=0,1")
    assert (found.status, found.err) == (status, message)
    assert not jobs


@pytest.mark.parametrize(("number", "status", "message"), ENDS)
def test_a_second_signal_that_goes_astray_is_not_lost(
    number: signal.Signals, status: int, message: str, command: Callable[..., Result],
    signalled: Callable[..., list[str]], jobs: list[ExperimentConfig],
) -> None:  # fmt: skip
    sent = signalled(number, times=2)
    found = command(*TINY)
    assert len(sent) == 2
    assert (found.status, found.err) == (status, message)
    assert not jobs


@pytest.mark.parametrize(("number", "status", "message"), ENDS)
def test_a_second_signal_does_not_wait(
    number: signal.Signals, status: int, message: str, command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[int] = []

    def endless(composed: Any) -> None:
        for attempt in range(3):
            reached.append(attempt)
            signal.raise_signal(number)

    monkeypatch.setattr("adadepth.run.checked", endless)
    found = command(*TINY)
    assert (found.status, found.err) == (status, message)
    assert reached == [0, 1]


@pytest.mark.parametrize(("number", "status", "message"), ENDS)
def test_a_signal_in_a_task_does_not_wait(
    number: signal.Signals, status: int, message: str, command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on: list[bool] = []

    def task(config: ExperimentConfig) -> None:
        signal.raise_signal(number)
        went_on.append(True)

    monkeypatch.setattr(tasks, "run", task)
    found = command(*TINY)
    assert (found.status, found.err) == (status, message)
    assert not went_on


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_at_the_start_stays_ignored(
    number: signal.Signals, command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `nohup` and a script that starts a run in the background ask for."""
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


def test_a_terminal_that_closes_may_say_so_twice() -> None:
    """Its shell sends the signal, and the system does; a run saves its checkpoint all the same."""
    stop = StopCallback()
    with stop.listening():
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert stop.why() == "interrupted by SIGHUP"
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
