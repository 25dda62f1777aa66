"""Errors of a full disk: which are recognised, and what their message says."""

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
def test_errors_of_a_full_disk_are_recognised(error: Exception, full: bool) -> None:
    assert is_full(error) is full


def test_the_first_full_disk_is_reported_despite_later_errors(tmp_path: Path) -> None:
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
def test_a_message_names_the_file_and_the_cause_if_known(error: Exception, line: str) -> None:
    message = format_full_disk_error(error, Path("there"))
    assert message is not None
    assert message.startswith(f"{line} (")
    assert ("free more space" in message, "raise the limit" in message) == ("no space" in line, "too large" in line)


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), convert_full_disk_errors(tmp_path):
        raise ZeroDivisionError
    assert format_full_disk_error(ZeroDivisionError()) is None


def test_a_failed_write_of_prepared_data_is_a_one_line_error(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        raise NUMPY

    with pytest.raises(DataError, match=r"^dataset\.cache_dir=\S+: No space left on device \(.* MiB are free\); free "):
        ensure_folder(tmp_path, "x", build)
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]
