"""Linear probes: fits against scikit-learn, and figures against counts by hand."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from adadepth.contrib.probing.linear_probes import (
    STRENGTHS,
    Labelled,
    accuracy,
    by_difficulty,
    fit_probe,
    gain,
    majority,
)
from adadepth.contrib.probing.report import (
    SECTION,
    build_probe_difficulty_table,
    flatten_accuracies,
    format_probes,
    probes,
    write_probes,
)
from adadepth.report.pages import draw_figures, write_report
from adadepth.report.run_files import read_run
from tests.pages_support import read_report


def draw_examples(count: int, seed: int) -> Labelled:
    """Draw three overlapping classes, in features of very different size."""
    generator = np.random.default_rng(seed)
    classes = generator.integers(3, size=count)
    centres = np.random.default_rng(7).normal(size=(3, 5))
    states = (centres[classes] + 1.5 * generator.normal(size=(count, 5))) * [1e-3, 1, 10, 1e3, 1]
    return Labelled(states, classes)


def compute_accuracy(predicted: Any, classes: Any) -> float:
    return float(np.mean(predicted == classes))


def test_the_probe_is_the_best_regression_on_validation() -> None:
    train, validation, test = draw_examples(300, 0), draw_examples(200, 1), draw_examples(400, 2)
    mean, deviation = train.states.mean(axis=0), train.states.std(axis=0)
    expected = {}
    for strength in STRENGTHS:
        plain = LogisticRegression(C=strength, max_iter=2000).fit((train.states - mean) / deviation, train.classes)
        score = np.mean(plain.predict((validation.states - mean) / deviation) == validation.classes)
        expected[strength] = score, plain.predict((test.states - mean) / deviation)
    best = max(score for score, _ in expected.values())
    strongest = next(strength for strength, (score, _) in expected.items() if score == best)
    probe = fit_probe(train, validation, compute_accuracy)
    assert len({score for score, _ in expected.values()}) > 1
    assert (probe.strength, probe.validation) == (strongest, pytest.approx(best))
    assert probe.converged
    np.testing.assert_array_equal(probe.model.predict(test.states), expected[strongest][1])


def test_another_score_can_select_the_probe() -> None:
    train, validation = draw_examples(300, 0), draw_examples(200, 1)
    worst = fit_probe(train, validation, lambda predicted, classes: -compute_accuracy(predicted, classes))
    best = fit_probe(train, validation, compute_accuracy)
    assert -worst.validation < best.validation


def test_states_that_do_not_differ_give_the_majority() -> None:
    classes = np.array([1] * 6 + [0] * 4)
    same = Labelled(np.ones((10, 3)), classes)
    assert fit_probe(same, same, compute_accuracy).model.predict(np.ones((5, 3))).tolist() == [1] * 5


def test_the_majority_is_that_of_training() -> None:
    baseline = majority(np.array([2, 2, 0, 1]), np.array([0, 0, 2, 1]), ["a", "b", "c"])
    assert (baseline["class"], baseline["accuracy"]) == ("c", 0.25)


def test_accuracy_has_a_wilson_interval() -> None:
    estimate = accuracy(np.array([True] * 8 + [False] * 2))
    z, n, p = 1.959964, 10, 0.8
    centre, reach = (
        (p + z**2 / (2 * n)) / (1 + z**2 / n),
        z / (1 + z**2 / n) * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)),
    )
    assert estimate["accuracy"] == p
    assert estimate["low"] == pytest.approx(centre - reach, abs=1e-6)
    assert estimate["high"] == pytest.approx(centre + reach, abs=1e-6)


def test_the_interval_of_the_gain_is_paired() -> None:
    before = np.array([True, True, False, False, False, False, True, True])
    after = np.array([True, True, True, True, True, False, False, True])
    estimate = gain(before, after)
    differences = [0, 0, 1, 1, 1, 0, -1, 0]
    deviation = math.sqrt(sum((d - 0.25) ** 2 for d in differences) / 8)
    assert estimate["gain"] == 0.25
    assert estimate["gain_high"] - 0.25 == pytest.approx(1.959964 * deviation / math.sqrt(8), abs=1e-6)
    assert estimate["gain_low"] + estimate["gain_high"] == pytest.approx(0.5)
    assert gain(after, after) == {"gain": 0.0, "gain_low": 0.0, "gain_high": 0.0}


def test_difficulties_with_few_examples_are_left_out() -> None:
    difficulty = np.array([0] * 25 + [1] * 19 + [3] * 20)
    right = np.array([True] * 20 + [False] * 5 + [True] * 19 + [False] * 20)
    rows = by_difficulty(right, difficulty)
    assert [(row["difficulty"], row["n"], row["accuracy"]) for row in rows] == [(0, 25, 0.8), (3, 20, 0.0)]


# --- files, tables and figures


def make_row(readout: str, update: int | None, right: int, **more: Any) -> dict[str, Any]:
    figures = {
        "readout": readout, "update": update, **accuracy(np.arange(100) < right), "train": 0.9, "validation": 0.8,
        "strength": 0.01, "converged": True, "metrics": {"accuracy": right / 100, "matthews": 0.5, "score": 0.5},
    }  # fmt: skip
    return {**figures, **({"gain": 0.1, "gain_low": 0.05, "gain_high": 0.15, "changed": 0.5} if update else {}), **more}


@pytest.fixture
def probes_content() -> dict[str, Any]:
    rows = [make_row(readout, update, 50 + 10 * (update or 0)) for readout in ("first", "mean") for update in (0, 1, 2)]
    rows.append(make_row("mean", None, 75))
    for probe_row in rows:
        probe_row["by_difficulty"] = [{"difficulty": 2, "n": 30, "accuracy": 0.4, "low": 0.3, "high": 0.5}]
    majority_row = {"class": "PAST", **accuracy(np.arange(100) < 45)}
    return {
        "max_updates": 2, "classes": 2, "validation_set": "validation", "examples": {"train": 300, "validation": 50},
        "unconverged": 1, "sets": {"test": {"n": 100, "majority": majority_row, "rows": rows}},
    }  # fmt: skip


def test_files_tables_and_report_agree(tmp_path: Path, probes_content: dict[str, Any]) -> None:
    write_probes(tmp_path, probes_content)
    assert read_run(tmp_path).of("probes.json") == probes_content
    with (tmp_path / "probes_test.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["readout"], line["update"], float(line["accuracy"])) for line in lines] == [
        ("first", "0", 0.5), ("first", "1", 0.6), ("first", "2", 0.7), ("mean", "0", 0.5), ("mean", "1", 0.6),
        ("mean", "2", 0.7), ("mean", "", 0.75), ("majority", "", 0.45),
    ]  # fmt: skip
    assert (lines[0]["gain"], lines[1]["gain"], lines[1]["matthews"]) == ("", "0.1", "0.5")
    page = write_report(read_report(tmp_path, [SECTION])).read_text()
    for expected in (
        "Linear probes after each update",
        "always PAST",
        "final state",
        "70.0%",
        "+10.0",
        "1 of the probes",
        "300",
    ):
        assert expected in page
    assert "halting.json" not in page
    assert (tmp_path / "tables" / "probes_test.tex").exists()
    assert {path.name for path in draw_figures(read_report(tmp_path, [SECTION]))} == {
        "probes_test.png",
        "probes_test.pdf",
    }
    text = format_probes(probes_content)
    assert "update 2" in text
    assert "always PAST" in text
    assert flatten_accuracies(probes_content)["probe/test/mean/final"] == 0.75
    assert flatten_accuracies(probes_content)["probe/test/first/2"] == 0.7


def test_difficulty_has_a_table_only_where_it_is_known(probes_content: dict[str, Any]) -> None:
    table = build_probe_difficulty_table("test", probes_content["sets"]["test"])
    assert table is not None
    assert [(row["read"], row["difficulty"], row["update 1"]) for row in table.rows] == [
        ("first token", 2, 0.4), ("mean of the tokens", 2, 0.4),
    ]  # fmt: skip
    for row in probes_content["sets"]["test"]["rows"]:
        del row["by_difficulty"]
    assert build_probe_difficulty_table("test", probes_content["sets"]["test"]) is None


def test_the_figure_has_every_update_and_the_majority(tmp_path: Path, probes_content: dict[str, Any]) -> None:
    write_probes(tmp_path, probes_content)
    section = probes(read_run(tmp_path))
    assert section is not None
    curves, first, mean = section.figures[0].panels
    assert [(name, list(points)) for name, points in curves.mark.curves] == [
        ("first token", [(0, 0.5), (1, 0.6), (2, 0.7)]), ("mean of the tokens", [(0, 0.5), (1, 0.6), (2, 0.7)]),
        ("always PAST", [(0, 0.45), (2, 0.45)]),
    ]  # fmt: skip
    assert (len(first.mark.rows), len(mean.mark.rows)) == (4, 5)
    assert probes(read_run(tmp_path / "gone")) is None
