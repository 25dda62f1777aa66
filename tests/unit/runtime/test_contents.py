"""What folders say of their files, and what older versions said of them."""

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
    """With a file, and one in a folder of its own."""
    (tmp_path / "inner").mkdir()
    for name in ("a", "inner/b"):
        (tmp_path / name).write_bytes(TEXT)
    return tmp_path


def test_a_record_has_every_file_but_its_own(folder: Path) -> None:
    (folder / "record").write_text("{}")
    entry = {"bytes": 9, "crc32": CRC}
    assert describe_files(folder, but="record") == {"a": entry, "inner/b": entry}


@pytest.mark.parametrize("entry", [{"bytes": 9, "crc32": CRC}, {"bytes": 9, "sha256": SHA}])
def test_files_are_compared_with_the_digest_that_their_record_has(folder: Path, entry: dict[str, object]) -> None:
    record = {"a": entry, "inner/b": entry}
    assert find_damaged_file(folder, record) is None
    (folder / "inner" / "b").write_bytes(b"123456780")
    assert find_damaged_file(folder, record) == "its inner/b has changed since it was written"
    (folder / "inner" / "b").write_bytes(b"12345")
    assert find_damaged_file(folder, record) == "its inner/b is damaged (5 bytes of 9)"
    (folder / "inner" / "b").unlink()
    assert find_damaged_file(folder, record) == "its inner/b is missing"


@pytest.mark.parametrize("record", ["[]", '{"a": [9]}', '{"a": {"bytes": 9}}', '{"a": null}', "{", '{"a": "no"}'])
def test_a_record_that_is_none_is_a_flaw(folder: Path, record: str) -> None:
    (folder / SEAL).write_text(record)
    assert find_damage(folder) == f"its {SEAL} is unreadable"
    (folder / MANIFEST).write_text(f'{{"files": {record}}}')
    assert find_checkpoint_error(folder) == f"its {MANIFEST} is damaged"
