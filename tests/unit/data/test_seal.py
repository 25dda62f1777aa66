"""Damaged prepared data, which are rebuilt with the same content."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from adadepth.data import load_pretraining_data
from adadepth.data.cache import SEAL, ensure_folder, find_damage
from adadepth.data.stores.documents import TokenStore
from tests.marks_support import keep_one_quick
from tests.unit.data.support import make_corpus_config, make_tokenizer_config, write_corpus


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "halved": lambda file: os.truncate(file, file.stat().st_size // 2),
    "zeroed": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "emptied": lambda file: file.write_bytes(b""),
    "one bit": flip,
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "deleted": Path.unlink,
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


def read(corpus: Path, cache: Path) -> tuple[list[int], list[int], str]:
    """Return the training and evaluation data, and the vocabulary."""
    data = load_pretraining_data(make_corpus_config(corpus, cache), make_tokenizer_config(), 0)
    stores: list[TokenStore] = [data.train.store, data.evaluation["held_out"].store]  # type: ignore[union-attr]
    return stores[0].tokens.tolist(), stores[1].tokens.tolist(), data.tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize("kind", keep_one_quick(9, DAMAGES))
def test_damaged_files_are_detected_and_rebuilt(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    corpus, cache = write_corpus(tmp_path), tmp_path / "cache"
    whole = read(corpus, cache)
    files = [file.relative_to(cache) for file in sorted(cache.glob("*/*"))]
    assert {file.name for file in files} == {"tokens.npy", "sentences.npy", "documents.npy", "tokenizer.json", SEAL}
    for file in files:
        caplog.clear()
        DAMAGES[kind](cache / file)
        assert read(corpus, cache) == whole, file
        (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert str(cache / file.parent) in warning
        assert find_damage(cache / file.parent) is None


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_a_file_in_place_of_the_folder_is_rebuilt(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "x"
    (tmp_path / "other").mkdir()
    if kind == "file":
        target.write_text("")
    else:
        target.symlink_to(tmp_path / ("other" if kind == "link" else "nowhere"))
    assert ensure_folder(tmp_path, "x", lambda folder: (folder / "a").write_text("text") and None) == target
    assert find_damage(target) is None
    assert list((tmp_path / "other").iterdir()) == [], "what a link leads to is left alone"


def test_other_files_in_a_folder_are_ignored(tmp_path: Path) -> None:
    corpus, cache = write_corpus(tmp_path), tmp_path / "cache"
    whole = read(corpus, cache)
    for folder in cache.glob("*/"):
        (folder / "more.npy").write_bytes(next(cache.glob("*/tokens.npy")).read_bytes())
    assert read(corpus, cache) == whole


def test_an_intact_folder_is_not_rebuilt(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "a").write_bytes(os.urandom(5 * 2**20))
        (folder / "b").write_bytes(b"")

    folder = ensure_folder(tmp_path, "x", build)
    begun = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert ensure_folder(tmp_path, "x", build) == folder
    assert begun == {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}


def test_files_reach_the_disk_before_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    sync, rename = os.fsync, Path.rename

    def note_sync(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def note_rename(path: Path, target: Path) -> Path:
        events.append("renamed")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    ensure_folder(tmp_path, "x", lambda folder: (folder / "a").write_text("text") and None)
    assert events[0] == "a"
    assert f".{SEAL}." in events[1]
    assert events[2].endswith(".partial")
    assert events[-1] == "renamed"
