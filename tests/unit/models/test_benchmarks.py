"""Benchmark scripts on models too small for meaningful times."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adadepth.runtime.hardware import describe_machine
from tests.figures_support import find_inked_pixels
from tests.marks_support import keep_one_quick
from tests.scripts_support import ROOT, load_script
from tests.unit.models.trm_support import build_trm, draw_puzzles


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return lambda name: load_script(f"benchmarks/{name}.py", monkeypatch)


@pytest.fixture
def run(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Return a function that runs a script, or a module of one, and returns its output."""

    def run(module: Any, *options: object) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["a script", *map(str, options)])
        module.main()
        return capsys.readouterr().out.splitlines()

    return run


# ---- par.py


@pytest.mark.slow
def test_par_xl_benchmark_prints_and_writes_all_parts(script: Any, run: Any, tmp_path: Path) -> None:
    benchmark = script("par")
    printed = run(benchmark, "--fast", "--json", tmp_path / "par.json")
    parts = ["PAR-XL:", "steps", "limit"] + 3 * ["blocks"] + 2 * ["networks"] + 2 * ["softmax"]
    assert [line.split()[0] for line in printed] == parts
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


def test_the_shapes_are_those_of_the_reference(script: Any) -> None:
    """Check the table of section 2: ratios of MACs of operations, and the savings of the paper's network."""
    benchmark, ratios = script("par"), []
    for shape in (benchmark.ORIGINAL, benchmark.TRAINING, benchmark.replace(benchmark.EVALUATION, batch=16)):
        size = shape.length, shape.memory, shape.batch
        s, f = (benchmark.architecture_macs(shape.config(), operation, *size) for operation in "sf")
        ratios.append(s / f)
    assert ratios == pytest.approx([0.77, 1.04, 3.60], abs=5e-3)


# ---- ponder_inference.py


@pytest.mark.parametrize(
    ("lengths", "exits"), keep_one_quick(3, [("full", "uniform"), ("mixed", "early"), ("mixed", "one-deep")])
)
def test_ponder_benchmark_measures_a_row(script: Any, lengths: str, exits: str) -> None:
    row = script("ponder_inference").measure(64, 8, lengths, exits, batch_size=8, repeats=1)
    assert row["predictions_identical"]
    assert row["largest_difference"] < 1e-5
    assert 1 <= row["mean_exit"] < row["max_exit"] <= 8
    share = row["mean_exit"] / 8
    assert row["ratio"] == pytest.approx(row["compacted_seconds"] / (share * row["full_seconds"]))


# ---- ragged_execution.py


@pytest.fixture
def ragged(script: Callable[[str], Any]) -> Any:
    return importlib.import_module("ragged_execution")


@pytest.mark.slow
def test_ragged_benchmark_prints_and_writes_every_row(ragged: Any, run: Any, tmp_path: Path) -> None:
    printed = run(ragged, "--fast", "--depths", "published", "--padding", "--json", tmp_path / "ragged.json")
    report = json.loads((tmp_path / "ragged.json").read_text())
    kinds = [(row["mode"], row["batch"], row["padding"]) for row in report["rows"]]
    assert kinds == [
        (mode, batch, padding) for mode in ("inference", "training") for batch in (1, 3) for padding in (False, True)
    ]
    assert sum(line.startswith(("inference  ", "training  ")) for line in printed) == len(kinds)
    for row in report["rows"]:
        medians = {name: times["median"] for name, times in row["seconds"].items()}
        assert row["mean"] == pytest.approx(7.1, rel=0.02)
        assert row["ideal"] == pytest.approx(12 / row["mean"] / (1 - row["padded_share"]))
        assert row["ragged"]["speedup"] == pytest.approx(medians["dense"] / medians["ragged"])
        assert row["ragged"]["share_of_ideal"] == pytest.approx(row["ragged"]["speedup"] / row["ideal"])
        low, high = sorted((medians["albert_floor"], medians["albert_ceiling"]))
        assert low <= row["albert_at_mean_seconds"] <= high
        for name in ("ragged", "auto"):
            assert row[name]["updates_equal"]
            assert row[name]["difference"] < 1e-5
            assert row[name]["macs"] <= 1
            assert row[name].get("gradient_difference", 0) < 1e-5
    assert "ragged and dense, the same updates: 1 (target >= 1: met; " in printed[-1]


@pytest.mark.parametrize("mode", keep_one_quick(2, ["inference", "training"]))
def test_rows_of_an_accelerator_have_its_precision(ragged: Any, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr(ragged, "PRECISION", torch.bfloat16)
    case = ragged.Case(64, 6, "geometric", 3.8, 16, 2, False, mode)
    row = ragged.measure(case, ragged.EXECUTIONS, repeats=1, max_seconds=9)
    assert row["ragged"]["updates_equal"]
    assert row["ragged"]["difference"] < 0.1
    assert row["ragged"].get("gradient_difference", 0) < 0.02


def test_a_failed_row_is_named(ragged: Any, run: Any, tmp_path: Path) -> None:
    printed = run(ragged, "--fast", "--depths", "shallow", "--max-seconds", 0, "--json", tmp_path / "ragged.json")
    report = json.loads((tmp_path / "ragged.json").read_text())
    assert report["rows"] == []
    assert len(report["left_out"]) == sum("left out: about 0 s at the least" in line for line in printed) == 4
    assert "0 rows, 4 left out" in printed


@pytest.mark.usefixtures("ragged")
def test_a_row_that_needs_too_much_memory_is_omitted() -> None:
    cases = importlib.import_module("ragged_cases")
    step = cases.Case(768, 24, "published", 10.0, 512, 32, False, "training")
    assert "GiB are there" in cases.describe_impossibility(step, 1e15, 1e9, 16 * 2**30)
    assert cases.describe_impossibility(step, 1e15, 1e9, 1e15) is None
    inference = dataclasses.replace(step, mode="inference")
    assert cases.describe_impossibility(inference, 1e15, 1e9, 16 * 2**30) is None


@pytest.mark.usefixtures("ragged")
@pytest.mark.parametrize(("mean", "max_updates"), [(3.8, 6), (10.0, 24)])
def test_the_distributions_have_their_mean_and_shape(mean: float, max_updates: int) -> None:
    distribution = importlib.import_module("prescribed_depths").compute_distribution
    depths = torch.arange(1, max_updates + 1, dtype=torch.float64)
    bell, flat = distribution(mean, max_updates, mean / 3), distribution(mean, max_updates, float("inf"))
    for shares in (bell, flat):
        assert shares.sum().item() == pytest.approx(1)
        assert (shares @ depths).item() == pytest.approx(mean)
    deviation = (bell @ (depths - mean) ** 2).sqrt().item()
    assert 0.8 * mean / 3 < deviation < 1.01 * mean / 3
    ratios = flat[1:] / flat[:-1]  # geometric
    torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios))


@pytest.mark.usefixtures("ragged")
@pytest.mark.parametrize(
    ("numbers", "limit", "verdict"),
    [
        ([0.9, 1.1], {"at_most": 1.1}, "1.1 (target <= 1.1: met"),
        ([0.9, 1.2], {"at_most": 1.1}, "1.2 (target <= 1.1: NOT met in 1 of 2 rows"),
        ([0.9, 0.85], {"at_least": 0.85}, "0.85 (target >= 0.85: met"),
        ([0.8, 0.7], {"at_least": 0.85}, "0.7 (target >= 0.85: NOT met in 2 of 2 rows"),
        ([], {"at_least": 0.85}, "not measured (target >= 0.85)"),
    ],
)
def test_the_worst_row_decides(numbers: list[float], limit: dict[str, float], verdict: str) -> None:
    base_row = {"mode": "inference", "hidden": 8, "depth": 6, "depths": "published", "length": 4, "batch": 1}
    rows = [{**base_row, "ragged": {"x": number}} for number in numbers]
    line = importlib.import_module("ragged_execution").judge("text", rows, "ragged", "x", **limit)
    assert line.startswith(f"text: {verdict}")


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_the_figure_is_drawn_from_earlier_runs(ragged: Any, run: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = []
    for mode in ("inference", "training"):
        rows = [
            {"mode": mode, "hidden": hidden, "batch": batch, "length": 128, "ideal": ideal, "ragged": {"speedup": 1.2}}
            for hidden in (256, 768)
            for batch in (1, 8)
            for ideal in (1.6, 2.4)
        ]
        files.append(tmp_path / f"{mode}.json")
        files[-1].write_text(json.dumps({"rows": rows}))
    assert run(ragged, "--figure", tmp_path / "ragged.png", *files) == []
    assert all(
        0.01 < half.mean() < 0.7 for half in np.array_split(find_inked_pixels(tmp_path / "ragged.png"), 2, axis=1)
    )


# ---- speed_grid.py


@pytest.mark.slow
def test_every_cell_names_its_machine_and_the_ideal_speed_up(
    script: Any, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    benchmark = script("speed_grid")
    monkeypatch.setattr(benchmark, "MOST_ROUNDS", 1)
    monkeypatch.setattr(benchmark, "LEAST_ROUNDS", 1)
    lines = run(benchmark, "--hidden", 16, "--batch", 3, "--threads", 1, "--json", tmp_path / "grid.json")
    cells = json.loads((tmp_path / "grid.json").read_text())
    assert [cell["mode"] for cell in cells] == ["forward", "training"]
    for cell, line in zip(cells, lines, strict=True):
        medians = {name: times["median"] for name, times in cell["seconds"].items()}
        assert cell["ratio"] == pytest.approx(medians["dense"] / medians["ragged"])
        assert 1.4 < cell["allowed"] < 5 / 3, "below the deepest over the mean: keys and values are refreshed once more"
        assert cell["machine"] == describe_machine(torch.device("cpu"))
        assert cell["machine"] in line


# ---- trm_inference.py


@pytest.mark.slow
def test_trm_benchmark_measures_a_row_and_detects_wrong_answers(script: Any) -> None:
    benchmark, model, (cells, _) = script("trm_inference"), build_trm(mixing="positions").eval(), draw_puzzles(10)
    row = benchmark.measure(model, cells, 4, "patience:1", repeats=1)
    with torch.no_grad():
        steps = model(cells, exit_rule="patience:1").exit_steps
        right, wrong = ([model(inputs, exit_rule="fixed:2")] for inputs in (cells, cells.flip(0)))
    assert row["mean_step"] == pytest.approx(float(steps.double().mean()))
    for way in ("exits", "refilled"):
        assert row[f"{way}_share"] == pytest.approx(row["full"] * row["mean_step"] / 4 / row[way])
        assert row[f"{way}_limit"] > 0
    assert benchmark.compare([right], right) == 2.0
    with pytest.raises(AssertionError, match="the same answers"):
        benchmark.compare([wrong], right)


# ---- engines.py


@pytest.mark.slow
def test_engines_benchmark_alternates_engines_with_equal_tokens(script: Any, run: Any, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("llama_cpp")
    engines = ["adadepth:f32", "transformers:f32", "llama.cpp:f32"]
    options = ("--widths", 32, "--loops", 2, "--repeats", 1, "--json", tmp_path / "engines.json")
    printed = run(script("engines"), *options, "--engines", *engines)
    assert [line.split()[5] for line in printed[1:]] == engines
    rows = json.loads((tmp_path / "engines.json").read_text())
    assert [row["same"] for row in rows] == [script("engines").WRITTEN] * 3
    assert rows[2]["of_adadepth"][1] == pytest.approx(rows[2]["writes"] / rows[0]["writes"])
    assert rows[2]["process"] < rows[0]["process"]
