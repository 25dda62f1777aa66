"""Names of the hardware that times were measured on, on every system."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from adadepth.runtime import hardware

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _clear_name_cache() -> Iterator[None]:
    """Clear the name, which is read once a process."""
    hardware.read_processor_name.cache_clear()
    yield
    hardware.read_processor_name.cache_clear()


def write_processor_file(monkeypatch: pytest.MonkeyPatch, path: Path, text: str | None) -> None:
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(hardware, "_CPU_INFO", path)


def test_the_processor_has_its_name_of_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9575F: 64-Core\n\nmodel name\t: other\n"
    write_processor_file(monkeypatch, tmp_path / "cpuinfo", text)
    assert hardware.read_processor_name() == "AMD EPYC 9575F: 64-Core"


@pytest.mark.parametrize("text", [None, "", "CPU implementer\t: 0x41\n", "model name\t: \n"])
@pytest.mark.parametrize(("processor", "machine", "name"), [
    ("arm", "arm64", "arm"), ("", "aarch64", "aarch64"), ("", "", "unknown processor"),
])  # fmt: skip
def test_python_names_the_processor_on_other_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, processor: str, machine: str, name: str
) -> None:
    write_processor_file(monkeypatch, tmp_path / "cpuinfo", text)
    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert hardware.read_processor_name() == name


@pytest.mark.parametrize(("threads", "words"), [(1, "1 thread"), (2, "2 threads")])
def test_a_time_on_a_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: int, words: str) -> None:
    write_processor_file(monkeypatch, tmp_path / "cpuinfo", "model name\t: Xeon\n")
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert hardware.describe_machine(CPU) == f"Xeon, torch 2.13.0, {words}"
    assert hardware.collect_hardware()["processor"] == "Xeon"


def test_a_time_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert hardware.describe_machine(torch.device("cuda", 1)) == "GPU 1, torch 2.13.0"
