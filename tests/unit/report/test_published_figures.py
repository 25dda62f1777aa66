"""Published scores beside those of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from adadepth.models.registry import families
from adadepth.report.pages import write_report
from adadepth.report.published_figures import build_published_figures, find_published_figures, load_published_figures
from adadepth.report.run_files import read_run
from tests.configs.support import configured
from tests.pages_support import read_report


def write_run(folder: Path, config: dict[str, Any], metrics: dict[str, float], depth: int | None = None) -> Path:
    """Write the files of a run that its report reads here."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps({"status": "finished", "final_metrics": metrics}), encoding="utf-8")
    if depth is not None:
        (folder / "halting.json").write_text(json.dumps({"max_depth": depth}), encoding="utf-8")
    return folder


COLA = {"model": {"name": "albert_act", "hidden_size": None}, "dataset": {"name": "cola"}}


def test_a_matching_run_shows_the_nearest_published_model(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", COLA, {"eval/matthews": 0.301, "eval/loss": 0.5}, depth=12)
    (row,) = find_published_figures(read_run(run))
    assert (row["model"], row["published"], row["differences"]) == ("small", 33.8, "")
    assert row["run"] == pytest.approx(30.1)
    page = write_report(read_report(run)).read_text(encoding="utf-8")
    assert "Published scores" in page
    assert "model cards asi/albert-act-tiny" in page
    assert "33.80" in page


def test_every_task_of_the_model_card_is_listed(tmp_path: Path) -> None:
    config = {**COLA, "dataset": {"name": "wnli"}}
    (row,) = find_published_figures(read_run(write_run(tmp_path / "run", config, {"eval/accuracy": 0.5}, depth=24)))
    assert (row["model"], row["published"]) == ("base", 65.1)


def test_different_settings_are_reported(tmp_path: Path) -> None:
    config = {
        "model": {"name": "trm", "hidden_size": 96, "num_steps": 16, "mixing": "positions"},
        "dataset": {"name": "sudoku_extreme", "max_train_examples": 1000, "max_evaluation_examples": 2000},
    }
    (row,) = find_published_figures(read_run(write_run(tmp_path, config, {"eval/exact_accuracy": 0.5})))
    assert row["published"] == 87.4
    assert row["differences"] == (
        "Published for model.hidden_size=512, this run: 96. "
        "Published for dataset.max_evaluation_examples=null, this run: 2000"
    )


@pytest.mark.parametrize(("model", "dataset", "metric"), [
    ("albert_act", "my_texts", "eval/matthews"), ("ponder_albert", "cola", "eval/matthews"),
    ("albert_act", "cola", "eval/accuracy"),
])  # fmt: skip
def test_other_runs_have_no_published_scores(tmp_path: Path, model: str, dataset: str, metric: str) -> None:
    config = {"model": {"name": model}, "dataset": {"name": dataset}}
    files = read_run(write_run(tmp_path, config, {metric: 0.3}))
    assert find_published_figures(files) == []
    assert build_published_figures(files) is None


def test_loops_of_the_harness_have_published_figures(tmp_path: Path) -> None:
    config = {"model": {"name": "looped", "core": 24, "hidden_size": 2048}, "dataset": {"name": "harness"}}
    metrics = {"harness/mmlu/fixed:1/acc": 0.4, "harness/mmlu/fixed:4/acc": 0.67, "harness/mmlu/fixed:4/seconds": 3.0}
    rows = find_published_figures(read_run(write_run(tmp_path, config, metrics)))
    assert [(row["metric"], row["published"], row["differences"]) for row in rows] == [
        ("harness/mmlu/fixed:1/acc", 41.2, ""), ("harness/mmlu/fixed:4/acc", 67.5, ""),
    ]  # fmt: skip


ROOTS = {
    "albert_act": "act_tiny", "adalayers": "adalayers_imdb", "par_xl": "par_base", "trm": "trm_sudoku_extreme",
    "looped": "loop_tiny",
}  # fmt: skip


@pytest.mark.slow
def test_settings_of_the_file_exist() -> None:
    """Check keys, since a renamed one would be reported as a difference."""
    for entry in load_published_figures():
        assert entry["family"] in families()
        config = configured(ROOTS[entry["family"]])
        for key in {key for model in entry["models"] for key in model["settings"]} - {"updates", "dataset.limit"}:
            value: Any = config
            for part in key.split("."):
                assert hasattr(value, part), key
                value = getattr(value, part)
