"""Grid search without training: its cells and jobs, finished runs on the disk, and the choice among them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from adadepth.config.experiment import ExperimentConfig
from adadepth.config.fingerprint import hash_result_settings
from adadepth.errors import ConfigError
from adadepth.tasks import grid_search
from adadepth.tasks.grid_search import RUNS, GridCell, Job, group_into_cells, list_missing_jobs
from tests.configs.support import configured

EPOCHS = ("trainer.eval_strategy=epoch", "trainer.save_strategy=epoch", "trainer.save_total_limit=null")


def make_job(rate: str, seed: int = 0, seeds: int = 1) -> tuple[list[str], ExperimentConfig]:
    overrides = [f"trainer.learning_rate={rate}", f"seed={seed}", f"seeds={seeds}"]
    return overrides, configured("act_cola", *overrides)


def write_run(folder: Path, name: str, scores: dict[int, float] | None = None, **record: Any) -> Path:
    """Write the record and the log of a finished run in the folder of a sweep."""
    run = folder / RUNS / "act_cola" / name
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"status": "finished", "result_hash": name} | record))
    lines = [
        {"step": 7 * epoch, "train/epoch": float(epoch), "eval/score": score} for epoch, score in (scores or {}).items()
    ]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


def test_jobs_that_differ_only_in_the_seed_are_one_cell() -> None:
    jobs = [make_job("1e-4", 0), make_job("1e-4", 1), make_job("1e-3", 4, seeds=2)]
    first, second = group_into_cells(jobs, ["trainer.learning_rate", "seed"])
    assert (first.settings, second.settings) == ({"trainer.learning_rate": "1e-4"}, {"trainer.learning_rate": "1e-3"})
    assert [list(job.seeds) for job in first.jobs] == [[0], [1]]
    assert first.hashes.keys() == {0, 1}
    assert second.hashes.keys() == {4, 5}
    assert first.of_seed(1) == ["trainer.learning_rate=1e-4", "seed=1", "seeds=1", "seed=1", "seeds=1"]
    assert second.hashes[5] == hash_result_settings(dataclasses.replace(jobs[2][1], seed=5, seeds=1))
    assert len({*first.hashes.values(), *second.hashes.values()}) == 4


def test_only_missing_seeds_are_trained() -> None:
    cell = GridCell({"a": "1"}, [Job(["a=1"], range(3)), Job(["a=1", "seed=7"], range(7, 8))])
    cell.hashes.update({seed: f"hash {seed}" for seed in (0, 1, 2, 7)})
    runs = {"hash 1": Path("run")}
    assert list_missing_jobs([cell], {}) == [(0, ["a=1"]), (0, ["a=1", "seed=7"])]
    assert list_missing_jobs([cell], runs) == [
        (0, ["a=1", "seed=0", "seeds=1"]), (0, ["a=1", "seed=2", "seeds=1"]), (0, ["a=1", "seed=7"]),
    ]  # fmt: skip
    assert list_missing_jobs([cell], dict.fromkeys(cell.hashes.values(), Path("run"))) == []


@pytest.mark.parametrize(("overrides", "from_epoch", "problem"), [
    (EPOCHS, 1, None),
    (("mode=evaluate", "checkpoint=a"), 1, "mode=evaluate: a grid search needs mode=train"),
    (("trainer.eval_strategy=steps", "trainer.save_strategy=steps", "trainer.eval_steps=5", "trainer.save_steps=5"), 1,
     "trainer.eval_strategy, trainer.save_strategy: must be epoch to choose an epoch"),
    ((*EPOCHS[:2], "trainer.save_total_limit=3"), 1, "trainer.save_total_limit=3: must be null to choose an epoch"),
    ((*EPOCHS, "trainer.max_steps=-1", "trainer.num_train_epochs=2"), 3,
     "hydra.sweeper.from_epoch=3: must be at most trainer.num_train_epochs=2"),
    ((*EPOCHS, "trainer.max_steps=9", "trainer.num_train_epochs=2"), 3, None),
])  # fmt: skip
def test_a_grid_search_needs_checkpoints_of_every_epoch(
    overrides: tuple[str, ...], from_epoch: int, problem: str | None
) -> None:
    config = configured("act_cola", *overrides)
    if problem is None:
        grid_search.check_epochs(config, from_epoch)
        return
    with pytest.raises(ConfigError) as raised:
        grid_search.check_epochs(config, from_epoch)
    assert problem in str(raised.value)


def test_finished_runs_are_found_and_damaged_ones_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = write_run(tmp_path, "a")
    write_run(tmp_path, "b", status="interrupted")
    (write_run(tmp_path, "c") / "run.json").write_text("{")
    newer = write_run(tmp_path, "d", result_hash="a")
    for _ in range(2):
        assert grid_search.find_finished_runs(tmp_path) == {"a": newer}
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"warning: {tmp_path}/runs/act_cola/c/run.json: is damaged")
    assert line.endswith("; this run is repeated")
    assert done != newer


def test_only_whole_epochs_have_a_score(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {1: 0.5, 2: 0.75})
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"step": 3, "train/epoch": 0.5, "eval/score": 0.9}\n{"step": 21, "train/epoch": 3.0}\n')
        log.write('{"step": 0, "train/epoch": 0.0, "eval/score": 0.1}\n')
    assert grid_search.read_epochs(run, "eval/score") == {
        1: (0.5, run / "checkpoints" / "checkpoint-7"), 2: (0.75, run / "checkpoints" / "checkpoint-14"),
    }  # fmt: skip


def test_the_best_mean_over_seeds_is_chosen_with_its_checkpoint(tmp_path: Path) -> None:
    scores = {"a": {1: 0.9, 2: 0.4}, "b": {1: 0.1, 2: 0.5}, "c": {1: 0.2, 2: 0.6}, "d": {1: 0.2, 2: 0.7}}
    runs = {name: write_run(tmp_path, name, epochs) for name, epochs in scores.items()}
    cells = [
        GridCell({"rate": "1"}, hashes={0: "a", 1: "b"}), GridCell({"rate": "2"}, hashes={0: "c", 1: "d"}),
        GridCell({"rate": "3"}, hashes={0: "missing"}),
    ]  # fmt: skip
    summary = grid_search.choose(cells, runs, {2: "out of memory"}, "eval/score", from_epoch=1, maximize=True)
    assert summary["left_out"] == [{"settings": {"rate": "3"}, "reason": "out of memory"}]
    chosen = summary["chosen"]
    assert (chosen["cell"], chosen["seed"], chosen["epoch"]) == (1, 1, 2)
    assert (chosen["run"], chosen["checkpoint"]) == (runs["d"], runs["d"] / "checkpoints" / "checkpoint-14")


def test_the_newest_finished_evaluation_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    for name, record in {
        "1": {"evaluated": "there"}, "2": {"evaluated": "there"}, "3": {"evaluated": "elsewhere"},
        "4": {"evaluated": "there", "status": "failed"},
    }.items():  # fmt: skip
        write_run(tmp_path, name, **record)
    assert grid_search.find_newest_evaluation(tmp_path / RUNS, Path("there")) == tmp_path / RUNS / "act_cola" / "2"
    assert grid_search.find_newest_evaluation(tmp_path / RUNS, Path("nowhere")) is None


def test_submissions_replace_those_of_an_earlier_choice(tmp_path: Path) -> None:
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / "old.tsv").write_text("")
    assert grid_search.take_submissions(tmp_path / "none", tmp_path) == []
    assert not (tmp_path / "submission").exists()
    (tmp_path / "evaluation" / "submission").mkdir(parents=True)
    (tmp_path / "evaluation" / "submission" / "CoLA.tsv").write_text("index\tprediction\n")
    assert grid_search.take_submissions(tmp_path / "evaluation", tmp_path) == ["CoLA.tsv"]
    assert (tmp_path / "submission" / "CoLA.tsv").read_text() == "index\tprediction\n"


def test_all_checkpoints_but_the_chosen_one_are_deleted(tmp_path: Path) -> None:
    checkpoints = [tmp_path / run / "checkpoints" / f"checkpoint-{step}" for run in "ab" for step in (1, 2)]
    for checkpoint in checkpoints:
        checkpoint.mkdir(parents=True)
    grid_search.delete_checkpoints([tmp_path / "a", tmp_path / "b"], checkpoints[2])
    assert [checkpoint for checkpoint in checkpoints if checkpoint.exists()] == [checkpoints[2]]
