"""Description of the hardware of a run or a benchmark, for `run.json` and for measured times."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adadepth.runtime.distributed import get_world_size
from adadepth.runtime.threads import get_thread_limit

if TYPE_CHECKING:
    import torch

_CPU_INFO = Path("/proc/cpuinfo")


@cache
def read_processor_name() -> str:
    """Return the model name of the processor on Linux, or its architecture elsewhere."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields = (line.partition(":") for line in lines)
    names = (value.strip() for name, _, value in fields if name.strip() == "model name")
    return next(filter(None, names), "") or platform.processor() or platform.machine() or "unknown processor"


def collect_hardware() -> dict[str, Any]:
    """Return a description of the hardware for the field `hardware` of run.json.

    It includes threads and GPUs only if torch is imported. `threads` is the greatest number that the run uses.
    """
    hardware: dict[str, Any] = {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": read_processor_name(),
        "cpus": os.cpu_count(),
    }
    if torch := sys.modules.get("torch"):
        hardware["threads"] = get_thread_limit()
        hardware["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return hardware | {"processes": get_world_size()}


def name_device(device: torch.device) -> str:
    """Return the name of the GPU or, for other devices, of the processor."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else read_processor_name()


def describe_machine(device: torch.device) -> str:
    """Describe the machine on which a time was measured: device, torch version, and CPU threads."""
    import torch

    threads = torch.get_num_threads()
    suffix = "" if device.type == "cuda" else f", {threads} thread{'s' * (threads != 1)}"
    return f"{name_device(device)}, torch {torch.__version__.partition('+')[0]}{suffix}"
