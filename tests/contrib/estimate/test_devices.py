"""Devices by name or peak, memory per device, and the batch that fits."""

from __future__ import annotations

import pytest

from adadepth.contrib.estimate.devices import (
    DEVICES,
    MemoryUse,
    compute_days,
    find_driver_device,
    find_largest_batch,
    get_memory_bytes,
    get_peak_rate,
    resolve_device,
    split_over_devices,
)
from adadepth.errors import ConfigError


def test_a_device_is_given_by_name_or_peak_rate() -> None:
    assert resolve_device("h100") is DEVICES["H100"]
    device = resolve_device(12.5)
    assert (get_peak_rate(device, "bf16", tf32=False), get_memory_bytes(device)) == (12.5e12, None)


@pytest.mark.parametrize("device", ["H10", 0, -3.0, float("inf"), True, None])
def test_an_unknown_device_is_a_one_line_error(device: object) -> None:
    with pytest.raises(ConfigError, match=r"^estimate\.device=.*: must be a number of TFLOPS or one of H100, .*MI300X"):
        resolve_device(device)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100_40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX_4090"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA GeForce RTX 3090", None),
    ],
)
def test_devices_are_recognised_by_their_driver_name(name: str, expected: str | None) -> None:
    assert find_driver_device(name) == (None if expected is None else DEVICES[expected])


def test_peak_rates_are_those_of_the_data_sheet() -> None:
    device = resolve_device("A100")
    rates = [
        get_peak_rate(device, precision, tf32) for precision, tf32 in (("bf16", False), ("fp32", True), ("fp32", False))
    ]
    assert rates == [312e12, 156e12, 19.5e12]


def test_memory_is_shared_by_several_devices() -> None:
    memory = MemoryUse(weights=80.0, gradients=8.0, optimizer=160.0, activations=30.0)
    assert split_over_devices(memory, 1, sharded=True, gradients=80, largest_block=5) == memory
    copies = split_over_devices(memory, 4, sharded=False, gradients=80, largest_block=5)
    assert copies == MemoryUse(80, 8, 160, 30, shared=80)
    shared = split_over_devices(memory, 4, sharded=True, gradients=80, largest_block=5)
    assert shared == MemoryUse(20, 2, 40, 30, shared=10)
    assert shared.total == 102


@pytest.mark.parametrize("fixed", [0, 100, 900])
@pytest.mark.parametrize("limit", [50, 101, 163, 1000, 4000])
def test_the_rows_that_fit_are_found(fixed: int, limit: int) -> None:
    fitting = [rows for rows in (1, 2, 4, 8, 16, 32) if fixed + 3 * rows <= limit]
    assert find_largest_batch(32, 8, fixed + 96, fixed + 24, limit) == max(fitting, default=None)


def test_days_are_of_86400_seconds() -> None:
    assert compute_days(864_000, 10) == 1
