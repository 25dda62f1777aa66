"""Support for test functions that several processes run together."""

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


def run_on_processes(module: str, folder: Path, processes: int = 2) -> None:
    """Run `main` of a module of this folder in the processes of one gloo group, without torchrun.

    A fresh interpreter imports what all processes need (4 s of a processor) and forks them.

    Raises:
        AssertionError: A process failed; the message has its output.
    """
    command = [sys.executable, "-m", __name__, f"{__package__}.{module}", str(folder), str(processes)]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": find_free_port()}
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
    environment = os.environ | group | sizes | {"PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        status = started.wait(600)
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
    assert status == 0, "\n".join(_output_path(folder, rank).read_text()[-3000:] for rank in range(processes))


def _output_path(folder: Path, rank: int) -> Path:
    return folder / f"process_{rank}.txt"


def _fork_processes(module: str, folder: Path, processes: int) -> int:
    """Start the processes, and return how many failed; the first failure ends the others, which may wait for it."""
    main = import_module(module).main
    running = {_start_process(main, folder, rank) for rank in range(processes)}
    failed = 0
    while running:
        ended, status = os.wait()
        running.remove(ended)
        failed += status != 0
        for other in running if status else ():
            os.kill(other, signal.SIGKILL)
    return failed


def _start_process(main: Callable[[Path], None], folder: Path, rank: int) -> int:
    child = os.fork()
    if child:
        return child
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    with _output_path(folder, rank).open("w") as file:
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


def find_free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(_fork_processes(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
