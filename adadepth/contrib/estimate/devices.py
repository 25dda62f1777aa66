"""Accelerators with peak rate and memory, memory use of distributed training, and training time."""

from __future__ import annotations

import re
from typing import NamedTuple

from adadepth.errors import ConfigError, nearest

_TERA, _GIGA, _DAY = 1e12, 1e9, 86400.0


class Device(NamedTuple):
    """Accelerator, such as a GPU, with the figures of its data sheet.

    Attributes:
        bf16: Peak rate of dense matrix products in bf16 or fp16 with accumulation in float32, TFLOPS.
        fp32: Peak rate of dense matrix products in float32, TFLOPS.
        memory: Memory in GB (1e9 bytes), without the additional memory of the driver. None if it is unknown.
    """

    bf16: float
    fp32: float
    memory: float | None


# Data sheets: NVIDIA H100 (SXM), H200 (SXM), A100 (SXM), L40S, L4 tensor core GPUs, "Ada GPU architecture" (RTX 4090),
# AMD Instinct MI300X. Where a sheet says "with sparsity", half of it.
DEVICES = {
    "H100": Device(989.4, 66.9, 80),
    "H200": Device(989.4, 66.9, 141),
    "A100": Device(312.0, 19.5, 80),
    "A100_40GB": Device(312.0, 19.5, 40),
    "L40S": Device(362.0, 91.6, 48),
    "L4": Device(121.0, 30.3, 24),
    "RTX_4090": Device(165.2, 82.6, 24),
    "MI300X": Device(1307.4, 163.4, 192),
}


def resolve_device(name: object) -> Device:
    """Return the accelerator with a name or, for a number, one with that many TFLOPS and unknown memory.

    Raises:
        ConfigError: If the name is neither a known device nor a positive number.
    """
    if isinstance(name, int | float) and not isinstance(name, bool) and 0 < name < float("inf"):
        return Device(float(name), float(name), None)
    names = {name.lower(): name for name in DEVICES}
    if str(name).lower() in names:
        return DEVICES[names[str(name).lower()]]
    choices = f"{', '.join(DEVICES)}{nearest(str(name), DEVICES)}"
    raise ConfigError(f"estimate.device={name}: must be a number of TFLOPS or one of {choices}")


def find_driver_device(name: str) -> Device | None:
    """Return the accelerator whose driver reports this name, such as "NVIDIA A100-SXM4-40GB", or None."""
    parts = set(re.split(r"[\s_-]+", name.upper()))
    matches = [key for key in DEVICES if set(key.upper().split("_")) <= parts]
    return DEVICES[max(matches, key=len)] if matches else None


def get_peak_rate(device: Device, precision: str, tf32: bool) -> float:
    """Return the peak rate of an accelerator at a precision, in operations per second."""
    if precision != "fp32":
        return device.bf16 * _TERA
    return (max(device.bf16 / 2, device.fp32) if tf32 else device.fp32) * _TERA


def get_memory_bytes(device: Device) -> float | None:
    """Return the memory of an accelerator in bytes, or None if it is unknown."""
    return None if device.memory is None else device.memory * _GIGA


def compute_days(tokens: float, tokens_per_second: float) -> float:
    """Return the number of days that training on `tokens` tokens takes."""
    return tokens / tokens_per_second / _DAY


class MemoryUse(NamedTuple):
    """Memory use of a training step on one device in bytes.

    Attributes:
        weights: Bytes of parameters and buffers.
        gradients: Bytes of the gradients of trained parameters.
        optimizer: Bytes of the optimiser's state, including averaged weights if there are any.
        activations: Peak bytes of a micro-batch in addition to the other fields.
        shared: Additional bytes with several devices: buckets of gradients, or the largest block with all its weights.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    shared: float = 0.0

    @property
    def total(self) -> float:
        """Total memory use of the training step in bytes."""
        return sum(self)


def split_over_devices(
    memory: MemoryUse, devices: int, sharded: bool, gradients: float, largest_block: float
) -> MemoryUse:
    """Return the memory use per device if several devices share a training step.

    With sharding, every device has an equal part of weights, gradients and optimiser state. It gathers the weights of
    the running block, and holds that block's gradients before they are reduced. Without sharding, every device has all
    of them, and also buckets as large as the gradients (torch's DistributedDataParallel without
    `gradient_as_bucket_view`).

    Args:
        memory: Memory use of a single device.
        devices: Number of devices.
        sharded: Whether the devices shard weights, gradients and optimiser state.
        gradients: Bytes of all gradients, including those that are not allocated yet at the peak.
        largest_block: Bytes of the weights of the largest block.
    """
    if devices == 1:
        return memory
    if not sharded:
        return memory._replace(shared=gradients)
    weights, gradients, optimizer = (size / devices for size in (memory.weights, memory.gradients, memory.optimizer))
    return MemoryUse(weights, gradients, optimizer, memory.activations, 2 * largest_block)


def find_largest_batch(rows: int, few: int, bytes_of_rows: float, bytes_of_few: float, limit: float) -> int | None:
    """Return the largest power of two of rows per batch that fits into memory, or None if one row does not.

    Memory is assumed to be linear in the number of rows.

    Args:
        rows: Rows of the micro-batch.
        few: Smaller number of rows.
        bytes_of_rows: Bytes of the micro-batch.
        bytes_of_few: Bytes of the smaller micro-batch.
        limit: Available bytes.
    """
    bytes_of_row = (bytes_of_rows - bytes_of_few) / (rows - few)
    fits = 1
    if bytes_of_few + bytes_of_row * (fits - few) > limit:
        return None
    while bytes_of_few + bytes_of_row * (2 * fits - few) <= limit and 2 * fits <= rows:
        fits *= 2
    return fits
