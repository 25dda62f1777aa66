"""Values on accelerators: copies and constants for which the host does not wait, and devices without float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

# Types of devices that refuse tensors in float64.
_WITHOUT_FLOAT64 = {"mps"}


def fill_values(values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return numbers of the host as a tensor, (n,), which kernels on the device fill.

    `torch.tensor(values, device=device)` copies from pageable memory, and waits until the device has done all its work.
    """
    return torch.stack([torch.full((), value, dtype=dtype, device=device) for value in values])


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device, for a GPU from pinned memory, and do not wait for the copy."""
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)


def has_float64(device: torch.device) -> bool:
    """Return whether a device has tensors in float64."""
    return device.type not in _WITHOUT_FLOAT64


def select_float64_device(device: torch.device) -> torch.device:
    """Return the device on which sums are kept in float64: the CPU instead of a device that refuses float64."""
    return device if has_float64(device) else torch.device("cpu")


def move_to_float64_device(values: Any, device: torch.device) -> Any:
    """Return nested values whose tensors are on `device`, moved to a device with float64 if it has none."""
    if has_float64(device):
        return values
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(select_float64_device(device)), values)
