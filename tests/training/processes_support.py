"""Functions that two processes run together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def on_two_processes(module: str, folder: Path) -> None:
    """Run `main` of a module of this folder as the two processes of one gloo group, which torchrun would start.

    A fresh interpreter imports what both need, 4 s of a processor, and becomes two.

    Raises:
        AssertionError: With what a process said that failed.
    """
    command = [sys.executable, "-m", __name__, f"{__package__}.{module}", str(folder)]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environment = os.environ | group | {"PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        status = started.wait(600)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
    assert status == 0, "\n".join(_said(folder, rank).read_text()[-3000:] for rank in range(2))


def _said(folder: Path, rank: int) -> Path:
    return folder / f"process_{rank}.txt"


def _become_two(module: str, folder: Path) -> int:
    """The sum of how both ended; the first that fails ends the other, which may wait for it."""
    main = import_module(module).main
    running = {_started(main, folder, rank) for rank in range(2)}
    failed = 0
    while running:
        ended, status = os.wait()
        running.remove(ended)
        failed += status != 0
        for other in running if status else ():
            os.kill(other, signal.SIGKILL)
    return failed


def _started(main: Callable[[Path], None], folder: Path, rank: int) -> int:
    child = os.fork()
    if child:
        return child
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    with _said(folder, rank).open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    status = 1
    try:
        main(folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(_become_two(sys.argv[1], Path(sys.argv[2])))
