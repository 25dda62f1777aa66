"""Training with several seeds, whose runs a stand-in writes: their summary, and its resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adadepth.config import ExperimentConfig
from adadepth.runs.directory import open_run, read_record, run_directory
from adadepth.tasks import multi_seed
from tests.configs.support import configured
from tests.unit.runs.checkpoint_support import write_checkpoint

Train = Callable[[ExperimentConfig], tuple[dict[str, float], Path]]


@pytest.fixture(autouse=True)
def _skip_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the reports, which need the files of real runs."""
    monkeypatch.setattr(multi_seed, "list_next_commands", lambda *_, **__: [])
    monkeypatch.setattr(multi_seed, "build_run_report", lambda directory: directory)
    monkeypatch.setattr(multi_seed, "show_last_screen", lambda *_: None)
    monkeypatch.setattr(multi_seed, "write_report", lambda *_: Path())
    monkeypatch.setattr(multi_seed, "draw_figures", lambda *_: None)
    monkeypatch.setattr(multi_seed, "finish_report", lambda run: None)


@pytest.fixture
def requests() -> list[tuple[int, str | None]]:
    """Return the list of seed and `resume` of every run that was requested."""
    return []


def make_train(requests: list[tuple[int, str | None]], *, stop_at: int | None = None) -> Train:
    """Return a stand-in with a tenth of the seed as score; at one seed it is interrupted after a checkpoint."""

    def train(config: ExperimentConfig) -> tuple[dict[str, float], Path]:
        requests.append((config.seed, config.resume))
        directory = Path(config.resume) if config.resume is not None else run_directory(config)
        metrics = {"eval/score": config.seed / 10} | ({"eval/late": 1.0} if config.seed else {})
        with open_run(config, directory) as run:
            if config.seed == stop_at:
                write_checkpoint(directory / "checkpoints", 2)
                raise KeyboardInterrupt
            run.update(final_metrics=metrics)
        return metrics, directory

    return train


def make_config(folder: Path, *overrides: str) -> ExperimentConfig:
    return configured("act_cola", f"output_dir={folder}", "seeds=3", *overrides)


def find_summary(folder: Path) -> Path:
    """Return the directory of the summary: the run with a file of seeds."""
    return next(folder.glob("act_cola/*/seeds.json")).parent


def test_every_seed_is_a_run_and_the_summary_has_their_means(
    tmp_path: Path, requests: list[tuple[int, str | None]]
) -> None:
    metrics = multi_seed.train_with_seeds(make_config(tmp_path), make_train(requests))
    assert requests == [(0, None), (1, None), (2, None)]
    assert metrics == {"eval/score": pytest.approx(0.1)}, "eval/late is of two runs only"
    directory = find_summary(tmp_path)
    summary = json.loads((directory / "seeds.json").read_text())
    assert summary["metrics"]["eval/late"]["n"] == 2
    assert {seed: read_record(directory / path)["seed"] for seed, path in summary["runs"].items()} == {
        "0": 0, "1": 1, "2": 2,
    }  # fmt: skip
    record = read_record(directory)
    assert (record["status"], record["final_metrics"]) == ("finished", metrics)
    assert {read_record(directory / path)["owner"] for path in summary["runs"].values()} == {directory.name}


def test_an_interrupted_summary_repeats_no_finished_seed_and_resumes_the_interrupted_one(
    tmp_path: Path, requests: list[tuple[int, str | None]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        multi_seed.train_with_seeds(make_config(tmp_path), make_train(requests, stop_at=1))
    directory = find_summary(tmp_path)
    assert read_record(directory)["status"] == "interrupted"
    requests.clear()
    config: Any = make_config(tmp_path, f"resume={directory}")
    metrics = multi_seed.train_with_seeds(config, make_train(requests))
    (first, resumed), (second, fresh) = requests
    assert (first, second, fresh) == (1, 2, None)
    assert resumed is not None
    assert read_record(Path(resumed))["seed"] == 1
    assert metrics == {"eval/score": pytest.approx(0.1)}
    assert "seed 0: already finished in" in capsys.readouterr().out
