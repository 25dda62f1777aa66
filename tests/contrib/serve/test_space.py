"""Exported folders for the hub: all files that the page needs, and nothing of the run's machine."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import yaml

from adadepth.contrib.serve.space import make_space, write_space
from adadepth.errors import CheckpointError
from adadepth.runs.inheritance import load_run_settings

KEPT = {"status": "finished", "dataset_schema": "hops_task"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "act_hops" / "2026-01-01_00-00-00_0-0"
    (directory / "model").mkdir(parents=True)
    (directory / "model" / "config.json").write_text("{}")
    (directory / "run.json").write_text(json.dumps(KEPT | {"hardware": {"node": "mine"}}))
    (directory / "config.yaml").write_text(
        "name: act_hops\ntask: finetune\nmodel: {name: albert_act}\ndataset: {name: hops, nodes: 16}\n"
        "tokenizer: {}\ntrainer: {}\nlogger: {}\n"
    )
    return directory


def test_the_folder_has_all_files_of_the_page(run: Path, tmp_path: Path) -> None:
    folder = write_space(run, tmp_path / "space")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "app.py", "requirements.txt", "README.md", "run/run.json", "run/config.yaml", "run/model/config.json",
    }  # fmt: skip
    ast.parse((folder / "app.py").read_text())
    _, card, _ = (folder / "README.md").read_text().split("---\n")
    assert yaml.safe_load(card) | {"sdk_version": ""} == {
        "title": "act_hops", "sdk": "gradio", "sdk_version": "", "app_file": "app.py", "license": "apache-2.0",
    }  # fmt: skip
    assert json.loads((folder / "run/run.json").read_text()) == KEPT
    assert load_run_settings(folder / "run", "checkpoint").dataset.nodes == 16  # type: ignore[attr-defined]


def test_the_folder_has_only_files_of_the_run(run: Path, tmp_path: Path) -> None:
    (tmp_path / "private.txt").write_text("private")
    (run / "run.json").write_text(json.dumps({"saved": {"model": {"config.json": {"bytes": 2, "crc32": 1}}}}))
    (run / "model" / "notes.txt").symlink_to(tmp_path / "private.txt")
    folder = write_space(run, tmp_path / "space")
    assert [path.name for path in (folder / "run" / "model").iterdir()] == ["config.json"]
    (run / "model" / "README.md").symlink_to(tmp_path / "private.txt")
    with pytest.raises(CheckpointError, match=r"^RUN=.*: its README.md is a link to .*, outside the folder"):
        write_space(run, tmp_path / "other")


def test_mistakes_are_one_line_errors(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert make_space([]) == make_space([str(tmp_path)]) == make_space([str(run), str(tmp_path / "full")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error"] * 3
