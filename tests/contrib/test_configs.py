"""YAML files in `contrib`, which Hydra finds beside sweepers, loggers, modes and datasets."""

from __future__ import annotations

from pathlib import Path

import pytest

from adadepth.errors import ConfigError
from adadepth.models.registry import config_folders
from tests.configs.support import configured

CONTRIB = Path(__file__).resolve().parents[2] / "adadepth" / "contrib"
FOLDERS = [folder for folder in config_folders() if folder.is_relative_to(CONTRIB)]
FILES = {(path.parent.name, path.stem): path for folder in FOLDERS for path in sorted(folder.glob("*/*.yaml"))}
# Root and further overrides of an option; others are options of `act_tiny`.
HOMES = {
    "bench": ("depth_bench",),
    "dataset": ("act_tiny", "mode=evaluate", "checkpoint=latest", "dataset.path=folder"),
    "estimate": ("par_base",),  # names it
}


def test_every_folder_is_found() -> None:
    paths = {path for folder in FOLDERS for path in folder.rglob("*.yaml")}
    assert paths == {*CONTRIB.rglob("*.yaml")}


@pytest.mark.parametrize(("group", "option"), FILES)
def test_every_option_composes_and_has_a_comment(group: str, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adadepth.training.trackers.find_spec", lambda name: name)  # some are extras
    root, *needs = HOMES.get(group, ("act_tiny",))
    configured(root, f"{group}={option}", *needs)
    assert any(line.startswith("# ") for line in FILES[group, option].read_text().splitlines())


def test_the_bench_composes_under_its_own_name() -> None:
    assert configured("depth_bench").name == "depth_bench"


@pytest.mark.parametrize(("logger", "message"), [
    ("mlflow", r"=mlflow: the package mlflow is missing; install it with pip install 'adadepth\[mlflow\]'"),
    ("comet", r"=comet: the package comet_ml is missing; install it with pip install 'adadepth\[comet\]'"),
])  # fmt: skip
def test_a_missing_library_of_a_logger_is_named(logger: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adadepth.training.trackers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=message):
        configured("act_tiny", f"logger={logger}")
