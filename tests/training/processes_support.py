"""Scripts that two processes run together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def on_two_processes(script: str, folder: Path) -> None:
    """Run a script of this folder as the two processes of one gloo group, which torchrun's own process would start.

    Raises:
        AssertionError: With what a process said that failed.
    """
    command = [sys.executable, str(Path(__file__).with_name(script)), str(folder)]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environment = os.environ | group | {"PYTHONPATH": str(ROOT)}
    said = [folder / f"process_{rank}.txt" for rank in range(2)]
    started = []
    try:
        for rank, path in enumerate(said):
            own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with path.open("w") as file:
                started.append(subprocess.Popen(command, cwd=ROOT, env=own, stdout=file, stderr=subprocess.STDOUT))
        for process, path in zip(started, said, strict=True):
            assert process.wait(600) == 0, path.read_text()[-3000:]
    finally:
        for process in started:
            process.kill()


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
