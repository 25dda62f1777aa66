"""The inference benchmark, on a model too small for its times to mean anything."""

from typing import Any

import pytest

from tests.scripts_support import load_script


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_script("benchmarks/ponder_inference.py", monkeypatch)


@pytest.mark.parametrize("lengths", ["full", "mixed"])
@pytest.mark.parametrize("exits", ["uniform", "early", "one-deep"])
def test_a_row_of_the_table(benchmark, lengths, exits):
    row = benchmark.measure(64, 8, lengths, exits, batch_size=8, repeats=1)
    assert row["predictions_identical"]
    assert row["largest_difference"] < 1e-5
    assert 1 <= row["mean_exit"] < row["max_exit"] <= 8
    share = row["mean_exit"] / 8
    assert row["ratio"] == pytest.approx(row["compacted_seconds"] / (share * row["full_seconds"]))


def test_the_exits_are_what_they_are_called(benchmark):
    assert benchmark.make_exits("uniform", 32, 12).count(12) in (1, 2, 3)
    assert sorted(benchmark.make_exits("one-deep", 32, 12)) == [3] * 31 + [12]
    early = benchmark.make_exits("early", 1000, 24)
    assert 5.5 < sum(early) / 1000 < 6.5
