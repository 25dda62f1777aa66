"""The grid of speed-ups, on models too small for its times to mean anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adadepth.system.hardware import describe_machine
from tests.scripts_support import ROOT, load_script


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return load_script("benchmarks/speed_grid.py", monkeypatch)


def test_every_cell_names_its_machine_and_what_the_work_allows(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark, "MOST_ROUNDS", 1)
    monkeypatch.setattr(benchmark, "LEAST_ROUNDS", 1)
    options = ("--hidden", "16", "--batch", "3", "--threads", "1", "--json", str(tmp_path / "grid.json"))
    monkeypatch.setattr(sys, "argv", ["speed_grid.py", *options])
    benchmark.main()
    cells, lines = json.loads((tmp_path / "grid.json").read_text()), capsys.readouterr().out.splitlines()
    assert [cell["mode"] for cell in cells] == ["forward", "training"]
    for cell, line in zip(cells, lines, strict=True):
        medians = {name: times["median"] for name, times in cell["seconds"].items()}
        assert cell["ratio"] == pytest.approx(medians["dense"] / medians["ragged"])
        assert 1.4 < cell["allowed"] < 5 / 3, "below the deepest over the mean: keys and values are refreshed once more"
        assert cell["machine"] == describe_machine(torch.device("cpu"))
        assert cell["machine"] in line
