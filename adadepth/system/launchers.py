"""Who started this run, and whether they start it again: torchrun when a process has died, Slurm after a requeue."""

from __future__ import annotations

import os
import socket
from pathlib import Path

# What numbers a launch, and what counts how often it was started again.
_NUMBERED = {
    "slurm": ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    "torchrun": ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
}
_OF_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SUBMITIT_LOCAL_JOB_ID")  # whose processes are started by the one that restarts
_BEGUN = 19  # the place of the first moment of a process in what Linux says after its name, in /proc/<pid>/stat


def launches() -> list[str]:
    """Names of the launches that this run is a part of."""
    numbered = (f"{kind} {os.environ[number]}" for kind, (number, _) in _NUMBERED.items() if _is_given(number))
    return [*numbered, *_of_parent()]


def repeated_launches() -> list[str]:
    """Names of those that may have started it before: a number may be anybody's choice, and used twice."""
    numbered = (
        f"{kind} {os.environ[number]}"
        for kind, (number, count) in _NUMBERED.items()
        if _is_given(number) and os.environ.get(count, "0") != "0"
    )
    return [*numbered, *_of_parent()]


def _is_given(number: str) -> bool:
    return os.environ.get(number, "none") != "none"  # what torchrun says where it was given none


def _of_parent() -> list[str]:
    """The process that started this one, where it is a launcher: no other has its number and its first moment."""
    if not any(name in os.environ for name in _OF_LAUNCHERS):
        return []
    parent = os.getppid()
    try:
        begun = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[_BEGUN]
    except (OSError, IndexError):
        return []  # only Linux tells
    return [f"process {parent} of {socket.gethostname()}, begun at {begun}"]
