"""Whole command lines as one or several processes, as torchrun starts them but without its four seconds a process.

One process imports what all runs need and forks the processes of each of them.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from tempfile import NamedTemporaryFile
from typing import Any

import torch

from adadepth import tasks
from tests.figures_support import shorten_runs
from tests.runs_support import run_and_exit
from tests.training.processes_support import ROOT, find_free_port

_ANSWER = "status "  # beside what libraries say when they are imported


def launch(arguments: Sequence[str], processes: int = 1) -> str:
    """Run `adadepth ARGUMENTS` in the processes of one gloo group, and return the output.

    Raises:
        AssertionError: A process failed; the message has the output.
    """
    status, printed = try_to_launch(arguments, processes)
    assert status == 0, printed[-6000:]
    return printed


def try_to_launch(arguments: Sequence[str], processes: int = 1) -> tuple[int, str]:
    """Return the exit status, that of the first process that failed, and the output."""
    server = _start_server()
    assert server.stdin is not None
    assert server.stdout is not None
    with NamedTemporaryFile("r", suffix=".txt") as output:
        job = {"given": list(arguments), "processes": processes, "said": output.name, "port": find_free_port()}
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        status = next((line for line in server.stdout if line.startswith(_ANSWER)), f"{_ANSWER}1")
        return int(status.removeprefix(_ANSWER)), output.read()


@cache
def _start_server() -> subprocess.Popen[str]:
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    server = subprocess.Popen([sys.executable, "-m", __name__], cwd=ROOT, env=os.environ | variables, **pipes)
    atexit.register(lambda: os.killpg(server.pid, signal.SIGKILL))
    return server


def _serve() -> None:
    """Load everything, then run each line of the input and answer with the status."""
    for module in pkgutil.iter_modules(tasks.__path__, "adadepth.tasks."):
        importlib.import_module(module.name)
    torch.set_num_threads(1)  # threads do not survive a fork
    for line in sys.stdin:
        print(f"{_ANSWER}{_run(**json.loads(line))}", flush=True)


def _run(arguments: list[str], processes: int, output: str, port: str) -> int:
    """Start the processes; the first that fails ends the others."""
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
    several = group | sizes if processes > 1 else {}
    running = {_start_process(rank, arguments, output, several) for rank in range(processes)}
    failed = 0
    while running:
        ended, status = os.wait()
        running.remove(ended)
        failed = failed or os.waitstatus_to_exitcode(status)
        for other in running if status else ():
            os.kill(other, signal.SIGKILL)
    return failed


def _start_process(rank: int, arguments: list[str], output: str, several: dict[str, str]) -> int:
    child = os.fork()
    if child == 0:
        if several:
            os.environ.update(several, RANK=str(rank), LOCAL_RANK=str(rank))
        with open(output, "a") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        run_and_exit(arguments, shorten_runs())
    return child


if __name__ == "__main__":
    _serve()
