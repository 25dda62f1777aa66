"""The benchmark of PAR-XL, on networks too small for its times to mean anything."""

import json
import sys
from typing import Any

import pytest

from tests.scripts_support import load_script


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_script("benchmarks/par.py", monkeypatch)


def test_one_run_prints_and_writes_all_parts(benchmark, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["par.py", "--fast", "--json", str(tmp_path / "par.json")])
    benchmark.main()
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["PAR-XL:", "steps", "limit"] + 3 * ["blocks"] + 2 * [
        "networks"
    ] + 2 * ["softmax"]
    assert sum("met)" in line for line in printed) == 4
    report = json.loads((tmp_path / "par.json").read_text())
    steps = report["steps"]
    assert steps["sampled_ratio"] == pytest.approx(steps["sampled"]["median"] / steps["soft"]["median"])
    assert steps["plain_ratio"] == pytest.approx(steps["soft"]["median"] / steps["plain"]["median"])
    fastest = min(steps[name]["median"] for name in ("matmul", "linear"))
    assert steps["products_per_second"] == pytest.approx(benchmark.PRODUCTS * 2 * 64 * 16 * 32 / fastest)
    assert [row["shape"]["memory"] for row in report["blocks"]] == [16, 192, 640]
    assert report["networks"][0]["architectures"] == {"searched": "sfff", "alternating": "sfsf"}
    network = report["networks"][1]
    ratio = network["searched"]["blocks_median"] / network["alternating"]["blocks_median"]
    assert network["blocks_ratio"] == pytest.approx(ratio)
    softmax = report["softmax"][0]
    assert softmax["ratio"] == pytest.approx(softmax["adaptive"]["median"] / softmax["full"]["median"])


def test_the_shapes_are_the_reference_s(benchmark):
    """Section 2's table: ratios of the operations' MACs, and what the paper's network saves at the longest memory."""
    ratios = []
    for shape in (benchmark.ORIGINAL, benchmark.TRAINING, benchmark.replace(benchmark.EVALUATION, batch=16)):
        size = shape.length, shape.memory, shape.batch
        s, f = (benchmark.architecture_macs(shape.config(), operation, *size) for operation in "sf")
        ratios.append(s / f)
    assert ratios == pytest.approx([0.77, 1.04, 3.60], abs=5e-3)


@pytest.mark.parametrize(("ratio", "verdict"), [(0.59, "met"), (0.6, "met"), (0.61, "NOT met")])
def test_a_ratio_is_judged(benchmark, ratio, verdict):
    assert benchmark.judge(ratio, 0.6) == f"{ratio:.3f} (target <= 0.6: {verdict})"
