"""Putting together what several processes have found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch.distributed as dist
from accelerate.utils import gather_object
from torch import Tensor

Found = TypeVar("Found")


def add_over_processes(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over processes, in place."""
    if dist.is_available() and dist.is_initialized():
        for tensor in tensors:
            dist.all_reduce(tensor)


def of_all_processes(found: Found) -> list[Found]:
    """What each process has, in their order, on each of them."""
    return gather_object([found]) if dist.is_available() and dist.is_initialized() else [found]
