"""Who says that a disk is full, and how."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from adadepth.data.cache import ensure_folder
from adadepth.errors import DataError
from adadepth.runtime.files import DiskFullError, convert_full_disk_errors, format_full_disk_error, is_full

NUMPY = OSError("100000 requested and 1008 written")


@pytest.mark.parametrize(("error", "full"), [
    (OSError(errno.ENOSPC, "No space left on device"), True), (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
    (OSError(errno.EFBIG, "File too large"), True), (NUMPY, True),
    (RuntimeError("basic_ios::clear: iostream error"), True), (OSError(errno.EIO, "I/O error"), False),
    (FileNotFoundError(errno.ENOENT, "No such file", "No space left on device"), False), (ValueError("no"), False),
])  # fmt: skip
def test_what_says_that_a_disk_is_full(error: Exception, full: bool) -> None:
    assert is_full(error) is full


def test_the_first_that_was_full_is_told_whatever_failed_later(tmp_path: Path) -> None:
    def fail() -> None:
        try:
            with convert_full_disk_errors(tmp_path / "inner"):
                raise OSError(errno.EDQUOT, "Disk quota exceeded", str(tmp_path / "there" / "file"))
        finally:
            raise OSError(errno.ENOSPC, "No space left on device", "report.html")

    line = rf"^{tmp_path}/there: disk quota exceeded for file \([\d.,]+ MiB are free\)"
    with pytest.raises(DiskFullError, match=line), convert_full_disk_errors(tmp_path / "outer"):
        fail()


@pytest.mark.parametrize(("error", "line"), [
    (OSError(errno.EFBIG, "File too large", "a/b.html"), "a: file too large for b.html"),
    (RuntimeError("basic_ios::clear: iostream error"), "there: no space left on device or file too large"),
    (RuntimeError("No space left on device (os error 28)"), "there: no space left on device"),
    (RuntimeError("I/O error: File too large (os error 27)"), "there: file too large"),
])  # fmt: skip
def test_what_is_told_is_what_is_known(error: Exception, line: str) -> None:
    told = format_full_disk_error(error, Path("there"))
    assert told is not None
    assert told.startswith(f"{line} (")
    assert ("free more space" in told, "raise the limit" in told) == ("no space" in line, "too large" in line)


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), convert_full_disk_errors(tmp_path):
        raise ZeroDivisionError
    assert format_full_disk_error(ZeroDivisionError()) is None


def test_prepared_data_that_numpy_cannot_write_are_one_line(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        raise NUMPY

    with pytest.raises(DataError, match=r"^dataset\.cache_dir=\S+: No space left on device \(.* MiB are free\); free "):
        ensure_folder(tmp_path, "x", build)
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]
