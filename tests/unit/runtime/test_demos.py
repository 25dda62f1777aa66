"""Demo models that come with the package: names, sizes, and no trace of the machine that made them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adadepth.errors import CheckpointError
from adadepth.runs.directory import read_record
from adadepth.runtime.demos import format_run, is_demo, list_demos, resolve_demo
from adadepth.runtime.files import find_damaged_file
from adadepth.runtime.hub_access import resolve_path
from tests.scripts_support import ROOT, load_script

NAMES = ["demo:hops", "demo:loop", "demo:maze", "demo:words"]
FOLDER = ROOT / "adadepth" / "demos"
LARGEST = 1_000_000  # bytes of all together


def get_demo_run(name: str) -> Path:
    run = resolve_demo("checkpoint", name)
    assert run is not None
    return run


def test_every_demo_of_the_script_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    demos = load_script(".ci/demos.py", monkeypatch).DEMOS
    assert list_demos() == NAMES == sorted(f"demo:{name}" for name in demos)


@pytest.mark.parametrize("name", NAMES)
def test_a_demo_is_a_run_with_intact_files(name: str) -> None:
    run = get_demo_run(name)
    assert run == FOLDER / name.removeprefix("demo:")
    assert find_damaged_file(run / "model", read_record(run)["saved"]["model"]) is None
    assert resolve_path("model", name) == str(run / "model")


def test_a_demo_is_resolved_by_its_name(tmp_path: Path) -> None:
    assert format_run(FOLDER / "hops") == "demo:hops"
    assert not is_demo(tmp_path / "hops")
    assert format_run(tmp_path / "hops") == str(tmp_path / "hops")


@pytest.mark.parametrize("value", ["outputs/act_hops/RUN", "latest", "albert/albert-base-v2", "demos:hops"])
def test_other_paths_are_not_demos(value: str) -> None:
    assert resolve_demo("checkpoint", value) is None


@pytest.mark.parametrize("value", ["demo:", "demo:hop", "demo:../demos/hops", "demo:hops/model", "demo:HOPS "])
def test_an_unknown_demo_is_an_error_with_the_known_names(value: str) -> None:
    names = "demo:hops, demo:loop, demo:maze, demo:words"
    with pytest.raises(CheckpointError) as caught:
        resolve_path("model", value)
    assert str(caught.value).startswith(f"model={value}: must be one of {names}")
    assert "\n" not in str(caught.value)


def test_the_error_suggests_the_nearest_name() -> None:
    with pytest.raises(CheckpointError, match=r"did you mean 'demo:maze'\?"):
        resolve_demo("checkpoint", "demo:mazes")


def test_demos_are_small_in_total() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= LARGEST


@pytest.mark.parametrize("name", NAMES)
def test_demos_do_not_name_the_machine_that_made_them(name: str) -> None:
    run = get_demo_run(name)
    machine = {"command", "launches", "git_commit", "hardware", "started", "resumed_from", "sweep", "trackers"}
    assert not machine & set(read_record(run))
    assert read_record(run)["status"] == "finished"
    for path in run.rglob("*"):
        if path.suffix in (".json", ".yaml", ".md"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.:/-])/(?:tmp|home|root|work|Users|usr|opt)\b", text), path
    assert not [path.name for path in run.rglob("*") if path.suffix in (".pt", ".bin", ".pkl", ".pth", ".py")]
