"""Temporary files that a killed process leaves in a run directory."""

import errno
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from adadepth.errors import CheckpointError
from adadepth.runtime.files import open_atomic, refuse_links, remove_temporary_files, replace_atomically, write_atomic


def test_temporary_files_are_removed_from_every_folder(tmp_path: Path) -> None:
    temporary = [
        ".run.json.12.tmp",
        "model/.README.md.12.tmp",
        "retrained/derived/.pareto.csv.7.tmp",
        "figures/.exits.png.7.tmp",
    ]
    permanent = ["run.json", "model/.gitattributes", ".hydra/config.yaml", "evaluations/one/.run.json.12.tmp"]
    for name in (*temporary, *permanent):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    remove_temporary_files(tmp_path, "evaluations")
    assert [name for name in temporary if (tmp_path / name).exists()] == []
    assert [name for name in permanent if not (tmp_path / name).exists()] == []


def test_the_next_writer_removes_files_of_killed_processes(tmp_path: Path) -> None:
    """Keep files of living processes, which may be about to rename them."""
    process = subprocess.Popen(["true"])
    process.wait()
    host = re.sub(r"\W", "_", socket.gethostname())
    abandoned = [f".budget.pdf.{host}-{process.pid}.tmp", f".curves.csv.{host}-{process.pid}.tmp"]
    permanent = [
        f".budget.pdf.{host}-{os.getppid()}.tmp",
        f".curves.csv.elsewhere-{process.pid}.tmp",
        ".hidden.csv",
        ".notes.tmp",
    ]
    for write in (lambda: write_atomic(tmp_path / "run.json", "{}"), lambda: _draw_figure(tmp_path / "halting.png")):
        for name in (*abandoned, *permanent):
            (tmp_path / name).write_text("")
        write()
        assert sorted(path.name for path in tmp_path.glob(".*")) == sorted(permanent)
    assert (tmp_path / "halting.png").read_text() == "drawn"


def _draw_figure(path: Path) -> None:
    with replace_atomically(path) as temporary:
        temporary.write_text("drawn")


@pytest.mark.parametrize("name", ["figures", "metrics.jsonl", "checkpoints/checkpoint-2", ".lock", "figures/gates"])
def test_the_target_of_a_link_in_a_run_directory_is_not_overwritten(tmp_path: Path, name: str) -> None:
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    refuse_links(tmp_path / "run")
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=f"{name}: is a link"):
        refuse_links(tmp_path / "run")


def test_a_file_that_is_a_link_is_replaced_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("theirs")
    (tmp_path / "run.json").symlink_to(tmp_path / "target")
    write_atomic(tmp_path / "run.json", "ours")
    assert [(tmp_path / name).read_text() for name in ("target", "run.json")] == ["theirs", "ours"]


@pytest.mark.parametrize(("error", "blamed"), [
    (OSError(errno.ENOSPC, "No space left on device"), "predictions.csv"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory", "input.csv"), "input.csv"),
])  # fmt: skip
def test_a_failing_write_names_the_written_file_and_not_one_being_read(
    tmp_path: Path, error: OSError, blamed: str
) -> None:
    with pytest.raises(OSError, match=blamed), open_atomic(tmp_path / "predictions.csv"):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there/run\.json'$"):
        write_atomic(tmp_path / "there" / "run.json", "{}")
