"""What a process does that is one of several of a run, started by a launcher such as torchrun."""

import os
import signal
import sys
import threading
import time
from typing import NoReturn

from adadepth.errors import ConfigError

_SECONDS_FOR_THE_FIRST = 60.0  # in which it says what is wrong, draws the report of what there is, and ends
_SECONDS_BETWEEN_LOOKS = 1.0
_OF_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")  # variables of the environment


def is_first_process() -> bool:
    """Whether this process is the one that speaks and writes."""
    return os.environ.get("RANK", "0") == "0"


def is_one_of_several() -> bool:
    """Whether a launcher started further processes for this run."""
    processes = os.environ.get("WORLD_SIZE", "1")
    return processes.isdecimal() and int(processes) > 1


def check_launcher() -> None:
    """Refuse what no launcher sets.

    Raises:
        ConfigError: Naming the variable of the environment.
    """
    for name in _OF_LAUNCHERS:
        if not (value := os.environ.get(name, "0")).isdecimal():
            raise ConfigError(f"{name}={value}: must be a whole number; only a launcher sets it, such as torchrun")


def end_with_launcher() -> None:
    """End this process, with a checkpoint, when the process that started it has gone: nobody else would.

    A launcher that is killed leaves its processes running, on devices that look free to whoever starts the next run.
    """
    if is_one_of_several():
        threading.Thread(target=_watch, args=(os.getppid(),), name="launcher", daemon=True).start()


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)


def exit_with(message: str, status: int) -> NoReturn:
    """Say what is wrong and end; of several processes the first speaks.

    A launcher ends all processes when one has ended. The others therefore wait for the first one, which found the same
    mistake; if it did not, it is their own, and they say it themselves.
    """
    if not is_first_process():
        if not is_one_of_several():
            raise SystemExit(status)
        time.sleep(_SECONDS_FOR_THE_FIRST)  # until the launcher's SIGTERM
        message = f"process {os.environ['RANK']}: {message}"
    from adadepth.console import visible  # what it needs is not needed otherwise to say `--help`

    for line in visible(message).splitlines():
        print(f"error: {line}", file=sys.stderr, flush=True)
    raise SystemExit(status)
