"""CPU threads of a run: as many as there are free processors, and no more than the work of a batch can use.

The threads of a parallel operation wait for each other. If another process takes the processor of one of them, the
others wait as well, and a step on two threads takes two to ten times as long as on one. A run therefore leaves the
processors of other processes alone (`limit_threads`), and computes small batches on fewer threads (`fit_threads`).
docs/configuration.md has the measurements.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from adadepth.runtime.distributed import get_world_size

_STAT, _TASKS = Path("/proc/stat"), Path("/proc/self/task")
_FREE_SHARE = 0.65  # of a processor's time, from which on a further thread there is faster than none
_WINDOW_S = 0.2  # the shortest time over which the load by other processes is measured
_MACS_PER_THREAD = 2.5e6  # multiply-accumulates of an update of a batch that occupy a thread


class ProcessorTimes(NamedTuple):
    """Times at one moment, in seconds.

    Attributes:
        wall: Time of the clock.
        busy: Time that the processors allowed to this process have spent on any process, or that a host took from them.
        computed: Time that this process and its finished children have computed.
    """

    wall: float
    busy: float
    computed: float


class ThreadLimit(NamedTuple):
    """Greatest number of threads of a run.

    Attributes:
        number: Number of threads.
        is_fixed: Whether every batch uses this number, because the user has set it.
        reason: Reason for a number other than that of the processors, or the empty text.
    """

    number: int
    is_fixed: bool
    reason: str = ""


_limit: ThreadLimit | None = None  # None: torch's own number, because no run has asked


def read_processor_times() -> ProcessorTimes | None:
    """Read the times of the processors that this process may use, or return None where Linux's /proc is missing."""
    try:
        lines = _STAT.read_text(encoding="ascii").splitlines()
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    fields = (line.split() for line in lines if line.startswith("cpu"))
    # user, nice, system, idle, iowait, irq, softirq, steal; the guests after them are counted in user and nice
    ticks = sum(sum(map(int, values[:3] + values[5:8])) for name, *values in fields if name in allowed)
    spent = os.times()
    return ProcessorTimes(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), sum(spent[:4]))


_last_times = read_processor_times()


@cache
def count_processors() -> int:
    """Count the processors that this process may use: by affinity, and by the share of its control group."""
    from joblib import cpu_count

    return int(cpu_count())


@cache
def _read_default_threads() -> int:
    """Return torch's number of threads before a run changes it: from the environment, or one a core."""
    import torch

    return torch.get_num_threads()


def measure_other_load() -> float:
    """Return how many processors other processes have used on average since the last call, or 0 if unknown.

    The first call measures since this module was imported, which is when the program started.
    """
    global _last_times
    if (begun := _last_times) is None:
        return 0.0
    time.sleep(max(0.0, begun.wall + _WINDOW_S - time.monotonic()))
    _last_times = now = read_processor_times()
    assert now is not None, "/proc was there before"
    return max(0.0, (now.busy - begun.busy) - (now.computed - begun.computed)) / (now.wall - begun.wall)


def limit_threads(requested: int | None, recorded: int | None = None) -> None:
    """Choose the greatest number of threads of a run.

    Without a request it is the number of processors that other processes leave free, and at most torch's own number,
    which follows `OMP_NUM_THREADS`. A processor is free if other processes use at most 35 % of its time.

    Args:
        requested: Number that the user has set (`runtime.threads`), or None.
        recorded: Number of the run that is resumed, which gives sums of the same rounding, or None.
    """
    global _limit
    default = _read_default_threads()
    if requested is not None:
        _limit = ThreadLimit(requested, is_fixed=True)
    elif recorded is not None:
        _limit = ThreadLimit(recorded, is_fixed=False, reason="as at the start of this run")
    elif default == 1 or "OMP_NUM_THREADS" in os.environ:
        _limit = ThreadLimit(default, is_fixed=False)
    else:
        _limit = _limit_by_load(default)
    _set_threads(_limit.number)


def _limit_by_load(default: int) -> ThreadLimit:
    processors = count_processors()
    if (processes := int(os.environ.get("LOCAL_WORLD_SIZE", get_world_size()))) > 1:
        share = max(1, processors // processes)
        return ThreadLimit(min(default, share), is_fixed=False, reason=f"{processes} processes share {processors} CPUs")
    load = measure_other_load()
    free = max(1, int(processors - load + 1 - _FREE_SHARE))
    reason = f"other processes use {load:.1f} of {processors} CPUs" if free < min(default, processors) else ""
    return ThreadLimit(min(default, processors, free), is_fixed=False, reason=reason)


def get_thread_limit() -> int:
    """Return the greatest number of threads of the run, or torch's number outside a run."""
    return _read_default_threads() if _limit is None else _limit.number


def describe_threads() -> str:
    """Describe the number of threads, why it is small, and whether it exceeds the processors of this process."""
    number = get_thread_limit()
    reason = "" if _limit is None else _limit.reason
    if number > (processors := count_processors()):
        reason = f"but only {processors} CPU{'s' * (processors != 1)}: they will wait for each other"
    return f"{number} thread{'s' * (number != 1)}" + (f" ({reason})" if reason else "")


def fit_threads(model: Any, batch: Mapping[str, Any]) -> None:
    """Use as many threads as the next batch can occupy. Do nothing outside a run, and for a number set by the user.

    The number depends on the sizes alone, so that a resumed run computes every batch on as many threads as before.

    Args:
        model: Model with a configuration; one without `hidden_size` computes every batch on the greatest number.
        batch: Tensors of the batch: `input_ids`, or rows of vectors.
    """
    if _limit is None or _limit.is_fixed:
        return
    width = getattr(model.config, "hidden_size", None)
    positions = batch["input_ids"].numel() if "input_ids" in batch else len(next(iter(batch.values())))
    # of an attention layer and a feed-forward layer of four times the width
    macs = math.inf if width is None else 12 * width**2 * positions
    _set_threads(max(1, min(_limit.number, macs // _MACS_PER_THREAD)))


def _set_threads(number: float) -> None:
    import torch

    if torch.get_num_threads() != number:
        torch.set_num_threads(int(number))


def read_waiting_seconds() -> float | None:
    """Return how long threads of this process were ready to run and waited for a processor, or None if unknown."""
    nanoseconds = 0
    try:
        for task in _TASKS.iterdir():
            nanoseconds += int((task / "schedstat").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return nanoseconds / 1e9
