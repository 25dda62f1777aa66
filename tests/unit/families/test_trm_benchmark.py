"""The benchmark of inference, on a model too small for its times to mean anything."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.scripts_support import load_script
from tests.unit.families.trm_support import puzzles, small


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_script("benchmarks/trm_inference.py", monkeypatch)


def test_a_row_of_the_table(benchmark: Any) -> None:
    model, (cells, _) = small(mixing="positions").eval(), puzzles(10)
    row = benchmark.measure(model, cells, 4, "patience:1", repeats=1)
    with torch.no_grad():
        steps = model(cells, exit_rule="patience:1").exit_steps
    assert row["mean_step"] == pytest.approx(float(steps.double().mean()))
    for way in ("exits", "refilled"):
        assert row[f"{way}_share"] == pytest.approx(row["full"] * row["mean_step"] / 4 / row[way])
        assert row[f"{way}_limit"] > 0


def test_other_answers_are_noticed(benchmark: Any) -> None:
    model, (cells, _) = small(mixing="positions").eval(), puzzles(6)
    with torch.no_grad():
        right, wrong = ([model(given, exit_rule="fixed:2")] for given in (cells, cells.flip(0)))
    assert benchmark.compare([right], right) == 2.0
    with pytest.raises(AssertionError, match="the same answers"):
        benchmark.compare([wrong], right)
