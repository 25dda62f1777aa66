"""What a kill leaves half-written in the folder of a run."""

import errno
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from adadepth.errors import CheckpointError
from adadepth.runtime.files import open_atomic, refuse_links, remove_temporary_files, replace_atomically, write_atomic


def test_what_a_kill_left_is_removed_wherever_it_lies(tmp_path: Path) -> None:
    left = [
        ".run.json.12.tmp",
        "model/.README.md.12.tmp",
        "retrained/derived/.pareto.csv.7.tmp",
        "figures/.exits.png.7.tmp",
    ]
    kept = ["run.json", "model/.gitattributes", ".hydra/config.yaml", "evaluations/one/.run.json.12.tmp"]
    for name in (*left, *kept):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    remove_temporary_files(tmp_path, "evaluations")
    assert [name for name in left if (tmp_path / name).exists()] == []
    assert [name for name in kept if not (tmp_path / name).exists()] == []


def test_the_next_writer_removes_what_killed_ones_left(tmp_path: Path) -> None:
    """A process that lives may be about to put its file in place."""
    process = subprocess.Popen(["true"])
    process.wait()
    here = re.sub(r"\W", "_", socket.gethostname())
    left = [f".budget.pdf.{here}-{process.pid}.tmp", f".curves.csv.{here}-{process.pid}.tmp"]
    kept = [
        f".budget.pdf.{here}-{os.getppid()}.tmp",
        f".curves.csv.elsewhere-{process.pid}.tmp",
        ".hidden.csv",
        ".notes.tmp",
    ]
    for write in (lambda: write_atomic(tmp_path / "run.json", "{}"), lambda: _drawn(tmp_path / "halting.png")):
        for name in (*left, *kept):
            (tmp_path / name).write_text("")
        write()
        assert sorted(path.name for path in tmp_path.glob(".*")) == sorted(kept)
    assert (tmp_path / "halting.png").read_text() == "drawn"


def _drawn(path: Path) -> None:
    with replace_atomically(path) as temporary:
        temporary.write_text("drawn")


@pytest.mark.parametrize("name", ["figures", "metrics.jsonl", "checkpoints/checkpoint-2", ".lock", "figures/gates"])
def test_a_link_in_the_folder_of_a_run_is_not_written_through(tmp_path: Path, name: str) -> None:
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
def test_a_failing_write_names_the_file_and_not_what_is_read_meanwhile(
    tmp_path: Path, error: OSError, blamed: str
) -> None:
    with pytest.raises(OSError, match=blamed), open_atomic(tmp_path / "predictions.csv"):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there/run\.json'$"):
        write_atomic(tmp_path / "there" / "run.json", "{}")
