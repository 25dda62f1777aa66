"""The lock of a run's folder: one holder at a time, also after a holder died."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from adadepth.errors import CheckpointError
from adadepth.runs.lock import LOCK, lock_directory

TRIES, PROCESSES = 60, 4
ENDED = 2**22 + 1  # above what Linux gives to processes


def leave_stale(folder: Path, content: str | None = None) -> None:
    owner = {"pid": ENDED, "host": socket.gethostname()}
    (folder / LOCK).write_text(json.dumps(owner) if content is None else content)


def _hold(folder: Path, number: int, begin: Barrier, end: Barrier) -> None:
    """Record in every try the time at which the lock was held, if it was."""
    for attempt in range(TRIES):
        if number == 0:
            leave_stale(folder)
        begin.wait()
        try:
            with lock_directory(folder):
                taken = time.monotonic()
                time.sleep(0.002)
                with (folder / f"held {attempt}").open("a") as file:
                    file.write(f"{taken} {time.monotonic()}\n")
        except CheckpointError:
            pass
        end.wait()


def test_a_stale_lock_is_taken_over_by_one_process_at_a_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    begin, end = context.Barrier(PROCESSES), context.Barrier(PROCESSES)
    processes = [context.Process(target=_hold, args=(tmp_path, number, begin, end)) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    for attempt in range(TRIES):
        lines = (tmp_path / f"held {attempt}").read_text().splitlines()
        intervals = sorted(tuple(map(float, line.split())) for line in lines)
        assert intervals, "somebody gets it"
        assert all(before[1] <= after[0] for before, after in pairwise(intervals)), "two at once"


def test_a_killed_holder_does_not_block_the_lock(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from adadepth.runs.lock import lock_directory\n"
        "with lock_directory(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"held\n"
    with pytest.raises(CheckpointError, match=f"in use by process {owner.pid} on {socket.gethostname()}$"):
        lock_directory(tmp_path).__enter__()
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    with lock_directory(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"pid": "x"}', '{"pid": -1, "host": 3}', "\0"])
def test_a_lock_with_any_content_can_be_read(tmp_path: Path, content: str) -> None:
    leave_stale(tmp_path, content)
    if "host" in content:
        with pytest.raises(CheckpointError, match="on 3; if that run is no longer running, delete"):
            lock_directory(tmp_path).__enter__()
    else:
        with lock_directory(tmp_path):
            assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_a_holder_on_another_host_keeps_the_lock(tmp_path: Path) -> None:
    leave_stale(tmp_path, json.dumps({"pid": ENDED, "host": "elsewhere"}))
    with pytest.raises(CheckpointError, match=f"by process {ENDED} on elsewhere"):
        lock_directory(tmp_path).__enter__()
    assert (tmp_path / LOCK).exists()
