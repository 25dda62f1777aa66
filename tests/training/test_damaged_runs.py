"""Runs and models whose files were changed, cut or lost: one line names the damage before anything is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from adadepth import tasks
from adadepth.errors import CheckpointError
from adadepth.runs.checkpoints import list_complete_checkpoints
from adadepth.runs.directory import read_record
from tests.configs.support import configured
from tests.training.support import mark_interrupted

EVALUATED = ("debug=default", "mode=evaluate", "trainer.disable_tqdm=true")


@pytest.fixture
def run(pretrained: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "act_tiny" / pretrained.parent.name
    shutil.copytree(pretrained.parent, copy, ignore=shutil.ignore_patterns("figures", "evaluations"))
    return copy


def list_folders(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_dir())


def evaluate(checkpoint: Path, folder: Path) -> float | None:
    return tasks.run(configured("act_tiny", *EVALUATED, f"checkpoint={checkpoint}", f"output_dir={folder}"))


def write_nan_weight(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights[next(iter(weights))].view(-1)[0] = float("nan")
    save_file(weights, model / "model.safetensors", {"format": "pt"})


def test_a_changed_model_of_a_run_is_not_evaluated(run: Path, tmp_path: Path) -> None:
    with (run / "model" / "model.safetensors").open("ab") as file:
        file.write(b" ")
    before = list_folders(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"^checkpoint=\S+/model: its model\.safetensors is damaged \([\d,]+ bytes of [\d,]+\)$"
    ):
        evaluate(run, tmp_path)
    assert list_folders(tmp_path) == before


def test_a_checkpoint_that_was_changed_is_not_evaluated(run: Path, tmp_path: Path) -> None:
    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    write_nan_weight(checkpoint)
    with pytest.raises(CheckpointError, match=r"its model\.safetensors has changed since it was written$"):
        evaluate(checkpoint, tmp_path)


def test_a_copied_model_only_needs_finite_weights(run: Path, tmp_path: Path) -> None:
    model = tmp_path / "mine"
    shutil.copytree(run / "model", model)
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    assert evaluate(model, tmp_path / "out") is not None
    write_nan_weight(model)
    before = list_folders(tmp_path)
    with pytest.raises(CheckpointError, match=r"^checkpoint=\S+/mine: its weights '\S+' are not finite$"):
        evaluate(model, tmp_path / "out")
    assert list_folders(tmp_path) == before


def test_a_copied_model_without_all_weights_is_refused(run: Path, tmp_path: Path) -> None:
    model = tmp_path / "mine"
    shutil.copytree(run / "model", model)
    weights = load_file(model / "model.safetensors")
    save_file({f"other.{name}": weight for name, weight in weights.items()}, model / "model.safetensors")
    before = list_folders(tmp_path)
    with pytest.raises(CheckpointError, match=r"^checkpoint=\S+/mine: its weights '\S+' and \d+ more are missing"):
        evaluate(model, tmp_path / "out")
    assert list_folders(tmp_path) == before


def test_a_run_resumes_from_an_older_checkpoint_if_the_newest_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compare the weights of the best checkpoint, after the run was moved and with a limit of one checkpoint."""
    overrides = ("budget=none", "debug=default", "trainer.max_steps=3", "trainer.eval_steps=1", "trainer.save_steps=1",
                 "trainer.save_total_limit=null", "trainer.disable_tqdm=true", f"output_dir={tmp_path}")  # fmt: skip
    tasks.run(configured("act_tiny", *overrides))
    (first,) = tmp_path.glob("act_tiny/*")
    run = first.rename(tmp_path / "act_tiny" / "moved")
    weights, best = (run / "model" / "model.safetensors").read_bytes(), read_record(run)["best_checkpoint"]
    (run / "checkpoints" / "checkpoint-3" / "optimizer.pt").unlink()
    tasks.run(configured("act_tiny", f"resume={mark_interrupted(run)}", "trainer.save_total_limit=1"))
    newest = run / "checkpoints" / "checkpoint-3"
    notice = f"skipped {newest}: its optimizer.pt is missing; resuming from checkpoint-2"
    assert notice in capsys.readouterr().out
    assert (run / "model" / "model.safetensors").read_bytes() == weights
    assert (read_record(run)["status"], read_record(run)["best_checkpoint"]) == ("finished", best)
    assert list_complete_checkpoints(run / "checkpoints") == sorted({run / "checkpoints" / best, newest})


@pytest.mark.parametrize(
    ("name", "is_folder"),
    [(".lock", False), ("checkpoints/checkpoint-2", False), ("metrics.jsonl", False), ("metrics.jsonl", True)],
)
def test_a_link_or_folder_in_place_of_a_file_is_refused(run: Path, tmp_path: Path, name: str, is_folder: bool) -> None:
    """Check that nothing is written where a link points."""
    path, away = run / name, tmp_path / "away"
    if path.exists():
        path.rename(away)
    before = away.read_bytes() if away.is_file() else None
    path.mkdir() if is_folder else path.symlink_to(away)
    mark_interrupted(run)
    configs = [configured("act_tiny", "debug=default", f"resume={run}", f"output_dir={tmp_path}")]
    if name == "metrics.jsonl" and not is_folder:
        configs.append(configured("act_tiny", "mode=report", f"run={run}"))
    for config in configs:
        with pytest.raises(CheckpointError, match=rf"{name}.*(must be a file|is a link)"):
            tasks.run(config)
    assert away.exists() == (name != ".lock")
    assert before is None or away.read_bytes() == before


def test_a_broken_line_of_the_log_stops_a_resume(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write("{broken\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: line \d+ is damaged"):
        tasks.run(configured("act_tiny", f"resume={mark_interrupted(run)}"))
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
