"""A disk that is full at any write: one line names the folder, the last checkpoint is whole, and `resume=` works."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import modeling_utils

from adadepth import tasks
from adadepth.errors import CheckpointError
from adadepth.runs.checkpoints import checkpoints, list_complete_checkpoints
from adadepth.runs.directory import CHECKPOINTS, read_record
from adadepth.runtime.files import DiskFullError
from adadepth.training import tracking
from tests.configs.support import configured

SETTINGS = ("debug=default", "trainer.max_steps=4", "trainer.eval_strategy=no", "trainer.load_best_model_at_end=false",
            "trainer.save_steps=2", "trainer.eval_on_start=false", "trainer.save_total_limit=1",
            "dataset.max_documents=12")  # fmt: skip
Fill = Callable[[pytest.MonkeyPatch], None]


def train(folder: Path, *overrides: str) -> Path:
    tasks.run(configured("act_tiny", *SETTINGS, "trainer.disable_tqdm=true", f"output_dir={folder}", *overrides))
    return next((folder / "act_tiny").iterdir())


@pytest.fixture(scope="module")
def expected_weights(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return (train(tmp_path_factory.mktemp("whole")) / "model" / "model.safetensors").read_bytes()


def fill_on_sync(name: str, nth: int) -> Fill:
    """Return a patch that fills the disk at the n-th time a file of this name is written whole."""

    def fill(patch: pytest.MonkeyPatch) -> None:
        sync, calls = os.fsync, [0]

        def raise_if_full(descriptor: int) -> None:
            calls[0] += f".{name}." in os.readlink(f"/proc/self/fd/{descriptor}")
            if calls[0] >= nth:
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(descriptor)

        patch.setattr(os, "fsync", raise_if_full)

    return fill


def fill_on_call(owner: Any, name: str, error: Exception, belongs: Callable[..., bool]) -> Fill:
    """Return a patch that fills the disk at the first call of a function with matching arguments."""

    def fill(patch: pytest.MonkeyPatch) -> None:
        call = getattr(owner, name)

        def raise_if_full(*args: Any, **kwargs: Any) -> Any:
            if belongs(*args, **kwargs):
                raise error
            return call(*args, **kwargs)

        patch.setattr(owner, name, raise_if_full)

    return fill


def is_second_checkpoint(*args: Any, **_: Any) -> bool:
    return any("checkpoint-4" in str(part) for part in args)


FULL = OSError(errno.ENOSPC, "No space left on device")
RUST = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
TORCH = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 177344 vs 177232")
TORCH.__context__ = RuntimeError("basic_ios::clear: iostream error")  # what torch says of a full tmpfs
FILLS: dict[str, tuple[Fill, str]] = {  # and the folder that is named
    "weights": (fill_on_call(modeling_utils, "safe_save_file", RUST, is_second_checkpoint), "checkpoint-4"),
    "optimizer": (fill_on_call(torch, "save", TORCH, is_second_checkpoint), "checkpoint-4"),
    "progress": (fill_on_sync("progress_0.json", 2), "checkpoint-4"),
    "manifest": (fill_on_sync("manifest.json", 4), "checkpoint-4"),  # begun, whole, begun
    "log": (fill_on_call(tracking._JsonLines, "log", FULL, lambda _, line, step: step == 3), ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILLS)
def test_a_run_on_a_full_disk_resumes_from_its_last_checkpoint(
    tmp_path: Path, expected_weights: bytes, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, folder = FILLS[kind]
    with monkeypatch.context() as patch:
        fill(patch)
        with pytest.raises(DiskFullError) as caught:
            train(tmp_path)
    (run,) = (tmp_path / "act_tiny").iterdir()
    full_folder = run / CHECKPOINTS / folder if folder else run
    assert str(caught.value).startswith(f"{full_folder}: no space left on device")
    assert "MiB are free" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in checkpoints(run / CHECKPOINTS)] == ["checkpoint-2"]
    assert list_complete_checkpoints(run / CHECKPOINTS)
    train(tmp_path, f"resume={run}")
    assert read_record(run)["status"] == "finished"
    assert (run / "model" / "model.safetensors").read_bytes() == expected_weights


def test_a_run_that_cannot_be_recorded_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_on_sync("run.json", 1)(monkeypatch)
    with pytest.raises(DiskFullError, match=r"^\S+: no space left on device for run\.json \("):
        train(tmp_path)
    assert not list((tmp_path / "act_tiny").iterdir())


@pytest.mark.slow
def test_a_report_that_found_no_space_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fill_on_sync("report.html", 1)(patch)
        with pytest.raises(DiskFullError, match=r"^\S+: no space left on device for report\.html \("):
            train(tmp_path)
    (run,) = (tmp_path / "act_tiny").iterdir()
    assert read_record(run)["status"] == "reporting"
    tasks.run(configured("act_tiny", "mode=report", f"run={run}"))
    assert (read_record(run)["status"], (run / "report.html").is_file()) == ("finished", True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Yield a function that mounts an empty disk of a size in KiB, or resizes the mounted one."""
    path = tmp_path / "disk"
    path.mkdir()

    def make(kibibytes: int) -> Path:
        options = f"size={kibibytes}k" + (",remount" if path.is_mount() else "")
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("no disk can be mounted here")
        return path

    yield make
    subprocess.run(["umount", path], capture_output=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("kibibytes", range(4, 950, 36))
def test_a_run_survives_a_real_disk_that_is_full_at_any_file(
    kibibytes: int, disk: Callable[[int], Path], expected_weights: bytes
) -> None:
    """Use a real disk, in steps smaller than most files of the run."""
    path = disk(kibibytes)
    with pytest.raises((DiskFullError, CheckpointError), match=rf"^.*{path}[^\n]*[Nn]o space left[^\n]*$"):
        train(path)
    disk(40_000)
    runs = list((path / "act_tiny").glob("*"))
    if not any(list_complete_checkpoints(run / CHECKPOINTS) for run in runs):
        for run in runs:  # nothing to go on with
            shutil.rmtree(run)
        runs = [train(path)]
    (run,) = runs
    if read_record(run)["status"] != "finished":
        train(path, f"resume={run}")
    assert (run / "model" / "model.safetensors").read_bytes() == expected_weights
