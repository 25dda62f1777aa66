"""Texts prepared in parts: the same arrays for any number of processes, and after any kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from adadepth.data.stores import parallel_tokenisation
from adadepth.data.stores.documents import build_document_encoding, build_line_encoding
from adadepth.data.stores.mmap_arrays import open_arrays
from adadepth.data.text.passages import split_sentences
from adadepth.data.text.tokenizer import PLAIN_IDS, load_or_train
from tests.marks_support import keep_one_quick
from tests.scripts_support import ROOT

from .support import make_tokenizer_config, write_corpus


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = write_corpus(tmp_path_factory.mktemp("corpus"), documents=120)
    return [*file.read_text(encoding="utf-8").split("\n\n"), "", "   "]


@pytest.fixture(scope="module")
def tokenizer(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return load_or_train(make_tokenizer_config(), tmp_path_factory.mktemp("cache"), lambda: "texts", lambda: texts)


@pytest.mark.parametrize("characters", [1, 700, 10**6])
def test_every_text_is_in_one_part_in_order(texts: list[str], characters: int) -> None:
    cut_parts = list(parallel_tokenisation.cut_parts(texts, characters))
    assert list(chain.from_iterable(cut_parts)) == texts
    assert all(sum(map(len, part)) + len(part) >= characters for part in cut_parts[:-1])
    assert all(sum(map(len, part[:-1])) + len(part) - 1 < characters for part in cut_parts)


def prepare_texts(
    root: Path, texts: list[str], encoding: parallel_tokenisation.Encoding, workers: int
) -> dict[str, bytes]:
    folder = parallel_tokenisation.ensure_texts(root, "train-key", lambda: texts, encoding, workers)
    assert [entry.name for entry in root.iterdir() if entry.is_dir()] == [folder.name]
    return {file.name: file.read_bytes() for file in folder.glob("*.npy")}


def test_documents_equal_those_of_the_tokenizer(
    texts: list[str], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    prepare_texts(tmp_path, texts, build_document_encoding(tokenizer), 1)
    arrays = open_arrays(next(tmp_path.glob("train-key*/")))
    by_document = [
        [tokenizer(sentence, **PLAIN_IDS)["input_ids"] for sentence in split_sentences(text)] for text in texts[:-2]
    ]
    sentences = list(chain.from_iterable(by_document))
    assert arrays["tokens"].tolist() == list(chain.from_iterable(sentences))
    assert arrays["sentences"].tolist() == np.cumsum([0, *map(len, sentences)]).tolist()
    sizes = [sum(map(len, document)) for document in by_document]
    assert arrays["documents"].tolist() == np.cumsum([0, *sizes]).tolist()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])  # 10 s of a processor
@pytest.mark.parametrize("kind", ["documents", "lines"])
def test_the_bytes_are_the_same_in_parts_for_any_number_of_processes(
    kind: str,
    workers: int,
    texts: list[str],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoding = (
        build_document_encoding(tokenizer) if kind == "documents" else build_line_encoding(tokenizer, append_eos=True)
    )
    whole = prepare_texts(tmp_path / "whole", texts, encoding, 1)  # one part
    monkeypatch.setattr(parallel_tokenisation, "PART", 800)
    assert prepare_texts(tmp_path / "parts", texts, encoding, workers) == whole


def test_only_damaged_parts_are_encoded_again(
    texts: list[str], tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = build_document_encoding(tokenizer)
    whole = prepare_texts(tmp_path / "whole", texts, encoding, 1)
    monkeypatch.setattr(parallel_tokenisation, "PART", 800)

    def interrupt():
        yield from texts[:100]
        raise KeyboardInterrupt

    root = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        parallel_tokenisation.ensure_texts(root, "train-key", interrupt, encoding, 1)
    parts = sorted(root.glob("*.parts/*.npz"))
    assert len(parts) > 5
    damaged, good = parts[0], parts[1:]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    times = {file: file.stat().st_mtime_ns for file in good}
    encoded = []
    original = parallel_tokenisation._encode_part

    def record_encoded(payload: bytes, part: list[str], file: Path) -> tuple[int, Path]:
        before = file.stat().st_mtime_ns if file.exists() else None
        result = original(payload, part, file)
        if file.stat().st_mtime_ns != before:
            encoded.append(file)
        return result

    monkeypatch.setattr(parallel_tokenisation, "_encode_part", record_encoded)
    assert prepare_texts(root, texts, encoding, 1) == whole
    assert damaged in encoded
    assert not set(times) & set(encoded)


def become_folder(file: Path) -> None:
    file.unlink()
    (file / "inside").mkdir(parents=True)


def swap(file: Path) -> None:
    other, between = file.with_name("5.npz"), file.with_name("between")
    file.rename(between)
    other.rename(file)
    between.rename(other)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda file: file.write_bytes(b""),
    "a folder": become_folder,
    "swapped": swap,
    "halved": lambda file: os.truncate(file, file.stat().st_size // 2),
}


@pytest.mark.parametrize("kind", keep_one_quick(3, [*DAMAGES, "of another text", "all is a file"]))
def test_parts_of_another_text_are_rebuilt(
    kind: str,
    texts: list[str],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoding = build_document_encoding(tokenizer)
    monkeypatch.setattr(parallel_tokenisation, "PART", 800)
    whole = prepare_texts(tmp_path / "whole", texts, encoding, 1)
    before = [text.replace("cat", "dog") for text in texts] if kind == "of another text" else texts

    def interrupt() -> Iterator[str]:
        yield from before[:100]
        raise KeyboardInterrupt

    root = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        parallel_tokenisation.ensure_texts(root, "train-key", interrupt, encoding, 1)
    (folder,) = root.glob("*.parts")
    if kind in DAMAGES:
        DAMAGES[kind](folder / "4.npz")
    elif kind == "all is a file":
        shutil.rmtree(folder)
        folder.write_text("")
    assert prepare_texts(root, texts, encoding, 1) == whole


PREPARE = """
import sys
from pathlib import Path
from adadepth.data import load_pretraining_data
from adadepth.config.data import CorpusConfig, Source
from adadepth.config.experiment import TokenizerConfig
if __name__ == "__main__":
    dataset = CorpusConfig(
        name="t", source=Source.local, path=sys.argv[1], cache_dir=sys.argv[2], sequence_length=64,
        prepare_workers=int(sys.argv[3]),
    )
    load_pretraining_data(dataset, TokenizerConfig(vocab_size=60, train_documents=100), 0)
"""


@pytest.mark.slow  # 40 MB of text, five kills
@pytest.mark.timeout(900)
def test_three_kills_change_no_byte_and_leave_no_process(tmp_path: Path) -> None:
    file = write_corpus(tmp_path, documents=100_000)
    script = tmp_path / "prepare.py"
    script.write_text(PREPARE, encoding="utf-8")

    def start(cache: str, workers: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), str(file), str(tmp_path / cache), str(workers)]
        return subprocess.Popen(command, start_new_session=True)

    def read_arrays(cache: str) -> dict[str, bytes]:
        return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in (tmp_path / cache).glob("*/*.npy")}

    assert start("alone", 1).wait() == 0
    for seconds in (6, 9, 11):
        killed = start("killed", 2)
        time.sleep(seconds)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        deadline = time.monotonic() + 20
        while has_process_of_session(killed.pid):
            assert time.monotonic() < deadline, "a worker outlives the process that started it"
            time.sleep(0.5)
    assert start("killed", 2).wait() == 0
    assert read_arrays("killed") == read_arrays("alone")
    assert not list((tmp_path / "killed").glob("*.par*"))


def has_process_of_session(session: int) -> bool:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session and "State:\tZ" not in (folder / "status").read_text():
                return True
        except (ProcessLookupError, FileNotFoundError):
            pass
    return False


@pytest.mark.slow  # three preparations of 12 MB
@pytest.mark.timeout(900)
def test_the_benchmark_of_preparation_compares_bytes_and_rates(tmp_path: Path) -> None:
    text = write_corpus(tmp_path, documents=2_000)
    options = ["--folder", str(tmp_path / "scratch"), "--megabytes", "12", "--kind", "lines", "--kills", "1"]
    command = [sys.executable, "benchmarks/preparation.py", "--text", str(text), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["workers"] for row in rows] == [1, 2, 2]
    assert all(row["same_bytes"] for row in rows)
    assert all(12 * 10**6 <= row["bytes"] < 13 * 10**6 for row in rows)
    assert all(row["resident_sum"] >= max(row["resident_each"]) for row in rows)
    measured = rows[:2]
    for row in measured:
        expected = row["characters"] / row["processor_seconds"] / row["own"]["processor"]
        assert row["share_of_own_by_processor"] == pytest.approx(expected)
