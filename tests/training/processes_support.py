"""Functions that several processes run together."""

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


def on_processes(module: str, folder: Path, processes: int = 2) -> None:
    """Run `main` of a module of this folder as the processes of one gloo group, which torchrun would start.

    A fresh interpreter imports what all need, 4 s of a processor, and becomes them.

    Raises:
        AssertionError: With what a process said that failed.
    """
    command = [sys.executable, "-m", __name__, f"{__package__}.{module}", str(folder), str(processes)]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
    environment = os.environ | group | sizes | {"PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        status = started.wait(600)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
    assert status == 0, "\n".join(_said(folder, rank).read_text()[-3000:] for rank in range(processes))


def _said(folder: Path, rank: int) -> Path:
    return folder / f"process_{rank}.txt"


def _become(module: str, folder: Path, processes: int) -> int:
    """How many failed; the first that does ends the others, which may wait for it."""
    main = import_module(module).main
    running = {_started(main, folder, rank) for rank in range(processes)}
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


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(_become(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
