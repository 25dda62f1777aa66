"""The device of the tests in this folder: `make test-gpu` runs them on CUDA, `make test-gpu DEVICE=cpu` on the CPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

DEVICE = torch.device(os.environ.get("ADADEPTH_TEST_DEVICE", "cuda"))
IS_CUDA = DEVICE.type == "cuda"


def move(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with its tensors on the device."""
    return {name: value.to(DEVICE) if isinstance(value, Tensor) else value for name, value in batch.items()}


@contextmanager
def count_waits() -> Iterator[list[str]]:
    """List the warnings of CUDA's sync-debug mode within the context, one for every wait; none on the CPU."""
    waits: list[str] = []
    if not IS_CUDA:
        yield waits
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits += [str(warning.message) for warning in caught if "synchroniz" in str(warning.message)]
