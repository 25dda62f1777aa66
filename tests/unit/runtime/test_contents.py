"""Lists of the files of a folder with their digests, also those that older versions wrote."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from adadepth.data.cache import SEAL, find_damage
from adadepth.runs.checkpoints import MANIFEST, find_checkpoint_error
from adadepth.runtime.files import describe_files, find_damaged_file

TEXT = b"123456789"
CRC = 0xCBF43926  # the check value of CRC-32 in every catalogue
SHA = hashlib.sha256(TEXT).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a file, and one in a subfolder."""
    (tmp_path / "inner").mkdir()
    for name in ("a", "inner/b"):
        (tmp_path / name).write_bytes(TEXT)
    return tmp_path


def test_a_record_lists_every_file_except_itself(folder: Path) -> None:
    (folder / "record").write_text("{}")
    entry = {"bytes": 9, "crc32": CRC}
    assert describe_files(folder, but="record") == {"a": entry, "inner/b": entry}


@pytest.mark.parametrize("entry", [{"bytes": 9, "crc32": CRC}, {"bytes": 9, "sha256": SHA}])
def test_files_are_compared_with_their_recorded_digest(folder: Path, entry: dict[str, object]) -> None:
    record = {"a": entry, "inner/b": entry}
    assert find_damaged_file(folder, record) is None
    (folder / "inner" / "b").write_bytes(b"123456780")
    assert find_damaged_file(folder, record) == "its inner/b has changed since it was written"
    (folder / "inner" / "b").write_bytes(b"12345")
    assert find_damaged_file(folder, record) == "its inner/b is damaged (5 bytes of 9)"
    (folder / "inner" / "b").unlink()
    assert find_damaged_file(folder, record) == "its inner/b is missing"


@pytest.mark.parametrize("record", ["[]", '{"a": [9]}', '{"a": {"bytes": 9}}', '{"a": null}', "{", '{"a": "no"}'])
def test_an_invalid_record_is_reported(folder: Path, record: str) -> None:
    (folder / SEAL).write_text(record)
    assert find_damage(folder) == f"its {SEAL} is unreadable"
    (folder / MANIFEST).write_text(f'{{"files": {record}}}')
    assert find_checkpoint_error(folder) == f"its {MANIFEST} is damaged"
