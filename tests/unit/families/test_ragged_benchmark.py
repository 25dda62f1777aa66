"""The benchmark of ragged execution, on models too small for its times to mean anything."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.figures_support import inked

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.fixture
def run(load, monkeypatch, capsys):
    def run(*options):
        monkeypatch.setattr(sys, "argv", ["ragged_execution.py", *map(str, options)])
        load("ragged_execution").main()
        return capsys.readouterr().out.splitlines()

    return run


def test_one_run_prints_and_writes_every_row(run, tmp_path):
    printed = run("--fast", "--depths", "published", "--padding", "--json", tmp_path / "ragged.json")
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


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_precision_of_an_accelerator(load, monkeypatch, mode):
    benchmark = load("ragged_execution")
    monkeypatch.setattr(benchmark, "PRECISION", torch.bfloat16)
    case = benchmark.Case(64, 6, "geometric", 3.8, 16, 2, False, mode)
    row = benchmark.measure(case, benchmark.EXECUTIONS, repeats=1, max_seconds=9)
    assert row["ragged"]["updates_equal"]
    assert row["ragged"]["difference"] < 0.1
    assert row["ragged"].get("gradient_difference", 0) < 0.02


def test_a_row_that_cannot_be_measured_is_named(run, tmp_path):
    printed = run("--fast", "--depths", "shallow", "--max-seconds", 0, "--json", tmp_path / "ragged.json")
    report = json.loads((tmp_path / "ragged.json").read_text())
    assert report["rows"] == []
    assert len(report["left_out"]) == sum("left out: about 0 s at the least" in line for line in printed) == 4
    assert "0 rows, 4 left out" in printed


def test_a_row_that_takes_too_much_memory_is_left_out(load):
    cases = load("ragged_cases")
    step = cases.Case(768, 24, "published", 10.0, 512, 32, False, "training")
    assert "GiB are there" in cases.why_impossible(step, 1e15, 1e9, 16 * 2**30)
    assert cases.why_impossible(step, 1e15, 1e9, 1e15) is None
    inference = dataclasses.replace(step, mode="inference")
    assert cases.why_impossible(inference, 1e15, 1e9, 16 * 2**30) is None


@pytest.mark.parametrize(("mean", "max_updates"), [(3.8, 6), (7.1, 12), (10.0, 24), (3.8, 24)])
def test_the_distributions_have_their_mean_and_shape(load, mean, max_updates):
    distribution = load("prescribed_depths").distribution
    depths = torch.arange(1, max_updates + 1, dtype=torch.float64)
    bell, flat = distribution(mean, max_updates, mean / 3), distribution(mean, max_updates, float("inf"))
    for shares in (bell, flat):
        assert shares.sum().item() == pytest.approx(1)
        assert (shares @ depths).item() == pytest.approx(mean)
    deviation = (bell @ (depths - mean) ** 2).sqrt().item()
    assert 0.8 * mean / 3 < deviation < 1.01 * mean / 3
    ratios = flat[1:] / flat[:-1]  # geometric
    torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios))


@pytest.mark.parametrize("flat", [False, True])
def test_drawn_depths_follow_the_mean_and_leave_padding_out(load, flat):
    valid = torch.arange(128) < torch.tensor([[128], [40], [77]])
    depths = load("prescribed_depths").draw_depths(valid, 10.0, 24, flat)
    assert depths[valid].double().mean().item() == pytest.approx(10.0, abs=0.05)
    assert depths[:, 0].tolist() == [24, 24, 24]
    assert ((depths > 0) == valid).all()
    assert depths.max() == 24
    assert depths.equal(load("prescribed_depths").draw_depths(valid, 10.0, 24, flat))


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
def test_the_worst_row_is_judged(load, numbers, limit, verdict):
    place = {"mode": "inference", "hidden": 8, "depth": 6, "depths": "published", "length": 4, "batch": 1}
    rows = [{**place, "ragged": {"x": number}} for number in numbers]
    line = load("ragged_targets").judge("text", rows, "ragged", "x", **limit)
    assert line.startswith(f"text: {verdict}")


@pytest.mark.filterwarnings("error")
def test_the_figure_is_drawn_from_earlier_runs(run, tmp_path):
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
    assert run("--figure", tmp_path / "ragged.png", *files) == []
    assert all(0.01 < half.mean() < 0.7 for half in np.array_split(inked(tmp_path / "ragged.png"), 2, axis=1))
