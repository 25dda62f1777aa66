"""Threads of a run: they leave processors to other processes, and a small batch uses fewer of them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from adadepth.runtime import threads


@pytest.fixture(autouse=True)
def _unset_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_limit", None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a machine of 16 processors, of which torch would use 16, and other processes use `load`."""
    machine = SimpleNamespace(processors=16, default=16, load=0.0)
    monkeypatch.setattr(threads, "count_processors", lambda: machine.processors)
    monkeypatch.setattr(threads, "_read_default_threads", lambda: machine.default)
    monkeypatch.setattr(threads, "measure_other_load", lambda: machine.load)
    return machine


def write_stat(path: Path, busy: dict[int, int]) -> None:
    """Write /proc/stat with the busy ticks of each processor, spread over the kinds of time, and idle time."""
    rows = (f"cpu{number} {ticks - 6} 1 1 99999 777 1 1 2 5 6" for number, ticks in busy.items())
    path.write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *rows, "intr 12 3"]) + "\n", encoding="ascii")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_the_load_counts_other_processes_on_the_allowed_processors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock, own_time = [100.0], [7.0]
    monkeypatch.setattr(threads, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2})
    monkeypatch.setattr(os, "times", lambda: (own_time[0], 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    ticks = os.sysconf("SC_CLK_TCK")
    write_stat(tmp_path / "stat", {0: 1000, 1: 1000, 2: 1000})
    monkeypatch.setattr(threads, "_last_times", threads.read_processor_times())
    write_stat(tmp_path / "stat", {0: 1000 + 4 * ticks, 1: 1000 + 9 * ticks, 2: 1000 + 6 * ticks})
    clock[0], own_time[0] = 110.0, 12.0
    assert threads.measure_other_load() == pytest.approx((4 + 6 - 5) / 10)
    write_stat(tmp_path / "stat", {0: 1000 + 6 * ticks, 1: 1000 + 9 * ticks, 2: 1000 + 6 * ticks})
    clock[0] = 114.0
    assert threads.measure_other_load() == pytest.approx(2 / 4), "since the last call"


def test_the_load_is_unknown_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(threads, "_STAT", tmp_path / "missing")
    monkeypatch.setattr(threads, "_last_times", threads.read_processor_times())
    assert threads.measure_other_load() == 0.0


@pytest.mark.parametrize(("processors", "default", "load", "number"), [
    (2, 2, 0.0, 2), (2, 2, 0.3, 2), (2, 2, 0.4, 1), (2, 2, 1.0, 1), (2, 2, 5.0, 1),
    (64, 64, 10.2, 54), (16, 8, 3.0, 8), (16, 8, 9.0, 7), (1, 1, 0.0, 1), (4, 64, 0.1, 4),
])  # fmt: skip
def test_processors_of_other_processes_are_left_alone(
    machine: SimpleNamespace, processors: int, default: int, load: float, number: int
) -> None:
    machine.processors, machine.default, machine.load = processors, default, load
    threads.limit_threads(None)
    assert threads.get_thread_limit() == torch.get_num_threads() == number
    assert ("other processes use" in threads.describe_threads()) == (number < min(processors, default))


def test_a_set_number_is_used_for_every_batch(machine: SimpleNamespace) -> None:
    machine.load = 15.0
    threads.limit_threads(3)
    threads.fit_threads(SimpleNamespace(config=SimpleNamespace(hidden_size=8)), {"input_ids": torch.zeros(1, 1)})
    assert torch.get_num_threads() == 3
    assert threads.describe_threads() == "3 threads"


def test_the_environment_sets_the_number(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.default, machine.load = 5, 15.0
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    threads.limit_threads(None)
    assert threads.get_thread_limit() == 5


def test_a_resumed_run_keeps_its_number_of_threads(machine: SimpleNamespace) -> None:
    machine.load = 15.0
    threads.limit_threads(None, recorded=6)
    assert threads.describe_threads() == "6 threads (as at the start of this run)"
    threads.limit_threads(2, recorded=6)
    assert threads.describe_threads() == "2 threads"


def test_processes_of_a_run_share_the_processors(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.load = 15.0  # the other processes of the run
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    threads.limit_threads(None)
    assert threads.describe_threads() == "4 threads (4 processes share 16 CPUs)"


def test_too_many_threads_are_a_warning(machine: SimpleNamespace) -> None:
    machine.processors = 1
    threads.limit_threads(8)
    assert threads.describe_threads() == "8 threads (but only 1 CPU: they will wait for each other)"


@pytest.mark.parametrize(("width", "rows", "number"), [
    (64, 1, 1), (128, 1, 1), (64, 8, 2), (64, 64, 16), (768, 1, 16), (None, 1, 16),
])  # fmt: skip
def test_the_number_of_threads_follows_from_the_batch(
    machine: SimpleNamespace, width: int | None, rows: int, number: int
) -> None:
    """Compare with numbers measured for 1 and 8 rows of 16 tokens on two processors (docs/log/2026-11.md)."""
    threads.limit_threads(None)
    config = SimpleNamespace() if width is None else SimpleNamespace(hidden_size=width)
    threads.fit_threads(SimpleNamespace(config=config), {"input_ids": torch.zeros(rows, 16, dtype=torch.long)})
    assert torch.get_num_threads() == number


def test_vectors_count_as_rows(machine: SimpleNamespace) -> None:
    threads.limit_threads(None)
    threads.fit_threads(SimpleNamespace(config=SimpleNamespace(hidden_size=64)), {"inputs": torch.zeros(100, 9)})
    assert torch.get_num_threads() == 1


def test_outside_a_run_nothing_changes() -> None:
    torch.set_num_threads(2)
    threads.fit_threads(SimpleNamespace(config=SimpleNamespace(hidden_size=8)), {"input_ids": torch.zeros(1, 1)})
    assert torch.get_num_threads() == 2
