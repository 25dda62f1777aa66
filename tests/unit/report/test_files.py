"""Files of a run: halting statistics, sentences, metrics and the console table."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from adadepth.report.depth_by_class import format_halting, write_halting_files
from adadepth.report.run_files import distributions, get_loss_curves, read_run, series
from adadepth.runtime.files import write_atomic
from tests.unit.report.synthetic import evaluate


@pytest.fixture(scope="module")
def evaluation() -> tuple[dict, list[dict]]:
    return evaluate(max_updates=6, progress=0.8, seed=0, batches=2)


def test_written_files_have_the_figures_of_the_summary(evaluation: tuple[dict, list[dict]], tmp_path: Path) -> None:
    summary, sentences = evaluation
    write_halting_files(tmp_path, summary, sentences, step=70)
    files = read_run(tmp_path)
    assert files.halting == {"step": 70, **summary}
    assert files.sentences == sentences
    with (tmp_path / "depth_by_class.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["class"]: row for row in csv.DictReader(file)}
    assert rows.keys() == summary["classes"].keys()
    for name, figures in summary["classes"].items():
        assert float(rows[name]["mean"]) == figures["mean"]
        assert [int(rows[name][f"depth_{depth}"]) for depth in range(7)] == figures["histogram"]
    assert rows["cls"]["loss"] == ""  # nothing is predicted there
    assert not list(tmp_path.glob(".*"))


def test_a_failed_write_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "a.txt", "first")

    def refuse_write(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse_write)
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "a.txt", "second")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_reader_keeps_the_whole_earlier_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a.txt", "first")
    with (tmp_path / "a.txt").open(encoding="utf-8") as reader:
        write_atomic(tmp_path / "a.txt", "second")
        assert reader.read() == "first"
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "second"


def test_lines_of_one_step_are_merged_and_damaged_ones_skipped(tmp_path: Path) -> None:
    lines = [
        {"step": 20, "a": 1.0},
        {"step": 10, "a": 5},
        {"step": 20, "b": 2},
        {"step": 20, "a": 3.0},
        {"a": 1},
        [1],
        {"step": "30", "a": 4.0},
        {"step": None},
    ]
    text = "\n".join([*map(json.dumps, lines), '{"step": 30, "a": '])
    (tmp_path / "metrics.jsonl").write_text(text, encoding="utf-8")
    metrics = read_run(tmp_path).metrics
    assert metrics == [{"step": 10, "a": 5}, {"step": 20, "a": 3.0, "b": 2}]
    assert series(metrics, "a") == [(10, 5.0), (20, 3.0)]


def test_curves_have_the_values_of_metrics() -> None:
    metrics = [
        {"step": 0, "train/loss": 3.0, "train/mlm_loss": "nan", "halting/all/histogram": [0, 5]},
        {"step": 9, "train/loss": 2.0, "eval/mlm_loss": 2.5, "eval/accuracy": 1.0, "halting/all/histogram": [0, 1, 2]},
    ]
    assert get_loss_curves(metrics) == {
        "loss": [("train", [(0, 3.0), (9, 2.0)]), ("eval", [])],
        "mlm_loss": [("train", []), ("eval", [(9, 2.5)])],
    }
    assert distributions(metrics, "halting/all/histogram") == [(9, [0, 1, 2])]


def test_the_console_table_has_the_figures_of_the_summary(evaluation: tuple[dict, list[dict]]) -> None:
    summary, _ = evaluation
    text = format_halting(summary, step=1250)
    assert text.isascii()
    assert "halting at step 1,250" in text
    assert max(map(len, text.splitlines())) <= 160
    needed_share, of_dense = (100 * summary["cost"][name] for name in ("adaptive_over_full", "executed_over_dense"))
    assert f"compute needed {needed_share:.1f}% of full depth; this evaluation ran " in text
    assert f", {of_dense:.1f}% of dense" in text
    for name, figures in summary["classes"].items():
        row = next(line.split() for line in text.splitlines() if line.startswith(f"{name} "))
        assert row[1:6] == [
            f"{figures['n']:,}", f"{figures['mean']:.2f}", f"{figures['std']:.2f}",
            str(figures["p10"]), str(figures["p90"]),
        ]  # fmt: skip


def test_the_console_names_missing_figures(evaluation: tuple[dict, list[dict]]) -> None:
    summary, _ = evaluation
    summary = summary | {"classes": summary["classes"] | {"sep": {"n": 0}}, "missing": {"halting/sep": "no such unit"}}
    lines = format_halting(summary).splitlines()
    assert "not available: halting/sep: no such unit" in lines
    assert next(line for line in lines if line.startswith("sep ")).split()[1:] == ["0", *"-------"]


def test_losses_of_single_steps_and_further_sets_have_no_curve() -> None:
    lines = [{"step": 1, "train/loss": 2.0, "eval/loss": 1.0, "eval/step_1/loss": 3.0, "eval/extrapolation/loss": 4.0}]
    assert get_loss_curves(lines) == {"loss": [("train", [(1, 2.0)]), ("eval", [(1, 1.0)])]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"step": "x"}', 'step must be a whole number, not "x"'),
        ('{"unit": "token", "classes": {"all": 3}}', "classes.all must be a mapping, not 3"),
        ("[1]", "the file must be a mapping, not a list"),
    ],
)
def test_statistics_of_the_wrong_shape_are_reported_as_damage(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "halting.json").write_text(text)
    reading = read_run(tmp_path)
    assert (reading.halting, reading.missing["halting.json"]) == ({}, f"halting.json is damaged ({problem})")
