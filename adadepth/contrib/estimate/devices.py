"""Devices by name, what each of several holds of a model, and how long training takes at a share of their peak."""

from __future__ import annotations

import re
from typing import NamedTuple

from adadepth.errors import ConfigError, nearest

_TERA, _GIGA, _DAY = 1e12, 1e9, 86400.0


class Device(NamedTuple):
    """What a data sheet says.

    Attributes:
        bf16: Peak of dense matrix products in bf16 or fp16 with sums in float32, TFLOPS.
        fp32: The same in float32.
        memory: GB, of 1e9 bytes; what a card has beyond them goes to its driver.
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
    """A device by its name in whatever case, or of so many TFLOPS, whose memory is not known.

    Raises:
        ConfigError: If it is neither.
    """
    if isinstance(name, int | float) and not isinstance(name, bool) and 0 < name < float("inf"):
        return Device(float(name), float(name), None)
    names = {name.lower(): name for name in DEVICES}
    if str(name).lower() in names:
        return DEVICES[names[str(name).lower()]]
    choices = f"{', '.join(DEVICES)}{nearest(str(name), DEVICES)}"
    raise ConfigError(f"estimate.device={name}: must be a number of TFLOPS or one of {choices}")


def find_driver_device(name: str) -> Device | None:
    """The device by what its driver calls it, such as "NVIDIA A100-SXM4-40GB"; None: it is not in the table."""
    parts = set(re.split(r"[\s_-]+", name.upper()))
    matches = [key for key in DEVICES if set(key.upper().split("_")) <= parts]
    return DEVICES[max(matches, key=len)] if matches else None


def get_peak_rate(device: Device, precision: str, tf32: bool) -> float:
    """Operations a second at its best; products in tf32 run at half the rate of bf16 on all of these."""
    if precision != "fp32":
        return device.bf16 * _TERA
    return (max(device.bf16 / 2, device.fp32) if tf32 else device.fp32) * _TERA


def get_memory_bytes(device: Device) -> float | None:
    """Bytes; None: not known."""
    return None if device.memory is None else device.memory * _GIGA


def compute_days(tokens: float, tokens_per_second: float) -> float:
    """How long it takes to read so many tokens."""
    return tokens / tokens_per_second / _DAY


class MemoryUse(NamedTuple):
    """Bytes that a device holds of a model in training.

    Attributes:
        weights: Of its parameters and buffers.
        gradients: Of the parameters that train.
        optimizer: Its state, and an average of the weights where there is one.
        activations: The most that a micro-batch needs besides.
        shared: What several devices need on top: buckets of gradients, or the largest block put together.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    shared: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)


def split_over_devices(
    memory: MemoryUse, devices: int, sharded: bool, gradients: float, largest_block: float
) -> MemoryUse:
    """What one of several devices holds.

    Sharded, each has an equal part of weights, gradients and optimizer, and puts the block together that runs: its
    weights, and its gradients before they are reduced. Otherwise each has all, and the buckets in which gradients
    travel are as large as the gradients (torch's DistributedDataParallel without `gradient_as_bucket_view`).

    Args:
        held: By one device alone.
        devices: How many.
        sharded: Whether they share.
        gradients: Bytes of all gradients, also of those that are not there yet when the most is held.
        largest_block: Bytes of the weights of the largest block.
    """
    if devices == 1:
        return memory
    if not sharded:
        return memory._replace(shared=gradients)
    weights, gradients, optimizer = (size / devices for size in (memory.weights, memory.gradients, memory.optimizer))
    return MemoryUse(weights, gradients, optimizer, memory.activations, 2 * largest_block)


def find_largest_batch(rows: int, few: int, bytes_of_rows: float, bytes_of_few: float, limit: float) -> int | None:
    """The largest power of two of rows that fits, of bytes that grow evenly with the rows; None: not even one.

    Args:
        rows: Of a micro-batch.
        few: A smaller number.
        of_rows: Bytes of the larger one.
        of_few: Bytes of the smaller one.
        limit: Bytes that there are.
    """
    bytes_of_row = (bytes_of_rows - bytes_of_few) / (rows - few)
    fits = 1
    if bytes_of_few + bytes_of_row * (fits - few) > limit:
        return None
    while bytes_of_few + bytes_of_row * (2 * fits - few) <= limit and 2 * fits <= rows:
        fits *= 2
    return fits
