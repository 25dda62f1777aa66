"""Launchers that restart runs: torchrun after a process has died, and Slurm after a requeue."""

from __future__ import annotations

import os
import socket
from pathlib import Path

# Launcher -> environment variables with the number of a launch and the count of its restarts.
_VARIABLES = {
    "slurm": ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    "torchrun": ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
}
_PARENTS = ("TORCHELASTIC_RUN_ID", "SUBMITIT_LOCAL_JOB_ID")  # set by launchers that restart their own child processes
_START_FIELD = 19  # index of the start time of a process after its name, in /proc/<pid>/stat


def launches() -> list[str]:
    """Return identifiers of the torchrun or Slurm launches to which this process belongs."""
    numbered = (f"{kind} {os.environ[number]}" for kind, (number, _) in _VARIABLES.items() if _is_set(number))
    return [*numbered, *_name_parent()]


def list_restartable_launches() -> list[str]:
    """Return identifiers of the launches that may already have started this run before.

    The number of a job does not suffice, because a user may choose it and use it twice.
    """
    numbered = (
        f"{kind} {os.environ[number]}"
        for kind, (number, count) in _VARIABLES.items()
        if _is_set(number) and os.environ.get(count, "0") != "0"
    )
    return [*numbered, *_name_parent()]


def _is_set(number: str) -> bool:
    return os.environ.get(number, "none") != "none"  # torchrun's value for a missing number


def _name_parent() -> list[str]:
    """Return an identifier of the parent process if it is a launcher, from its id and start time."""
    if not any(name in os.environ for name in _PARENTS):
        return []
    parent = os.getppid()
    try:
        started = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[_START_FIELD]
    except (OSError, IndexError):
        return []  # only Linux has /proc
    return [f"process {parent} of {socket.gethostname()}, started at {started}"]
