"""Files that change while data are prepared from them: nothing of them is stored."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from adadepth.config import CorpusConfig, TaggingConfig, TokenizerConfig
from adadepth.config.data import CausalConfig, QuestionConfig, Source, StreamConfig
from adadepth.data import cache, load_labelled_data, load_pretraining_data
from adadepth.data.streams.blocks import load_text_blocks
from adadepth.data.streams.load import load_language_data
from adadepth.data.text import hub
from adadepth.data.text.sources import SourceFile
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick, mark_mostly_slow

from .labelled_support import make_labelled_config, write_table
from .support import make_corpus_config, make_tokenizer_config, write_corpus
from .tokenizers_support import tokenizer

PAIRS = [{"premise": f"a cat {n} stops", "hypothesis": "that cat", "label": "no" if n % 3 else "yes"} for n in range(6)]
QUESTIONS = [
    {
        "id": f"q{n}",
        "question": "who stops?",
        "context": f"the cat stops {n}",
        "answers": {"text": ["cat"], "answer_start": [4]},
    }
    for n in range(4)
]
CONLL = "a\tO\ncat\tB-PER\n\nthe\tO\ncat\tB-PER\nstops\tO\n\n"


def save_tokenizer(folder: Path) -> TokenizerConfig:
    """Save a tokenizer beforehand, so that the data alone are read."""
    if not (folder / "bert").exists():
        tokenizer("bert").save_pretrained(folder / "bert")
    return TokenizerConfig(path=str(folder / "bert"))


def list_examples(dataset: Any) -> list[Any]:
    return [to_plain(dataset[index]) for index in range(len(dataset))]


def to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: to_plain(entry) for name, entry in value.items()}
    return [to_plain(entry) for entry in value] if isinstance(value, list) else np.asarray(value).tolist()


def read_labelled(folder: Path, dataset: Any) -> list[Any]:
    data = load_labelled_data(dataset, save_tokenizer(folder), 0, cls_tokens=0)
    return [data.labels, list_examples(data.train)]


def read_corpus(folder: Path, root: Path) -> list[Any]:
    data = load_pretraining_data(
        make_corpus_config(folder / "corpus.txt", root, sequence_length=16), make_tokenizer_config(), 0
    )
    return [data.train.store.tokens.tolist(), data.evaluation["held_out"].store.tokens.tolist(), len(data.tokenizer)]


def read_stream(folder: Path, root: Path, load: Any = load_language_data, kind: Any = StreamConfig) -> list[Any]:
    settings = {"name": "t", "source": Source.local, "path": str(folder / "corpus.txt"), "cache_dir": str(root)}
    dataset = kind(**settings, sequence_length=4, evaluation_fraction=0.2)
    rows = {"train_rows": 2, "evaluation_rows": 1} if kind is StreamConfig else {}
    data = load(dataset, TokenizerConfig(kind="word", vocab_size=None), **rows)
    store = next(iter(data.train.streams.values())).store if rows else data.train.store
    return [store.tokens.tolist(), store.lines.tolist(), len(data.tokenizer)]


def read_blocks(folder: Path, root: Path) -> list[Any]:
    return read_stream(folder, root, load_text_blocks, CausalConfig)


def read_table(folder: Path, root: Path, **changes: Any) -> list[Any]:
    return read_labelled(folder, make_labelled_config(folder, root, evaluation_splits=["train"], **changes))


def read_part_of_a_table(folder: Path, root: Path) -> list[Any]:
    return read_table(folder, root, max_train_examples=3, max_evaluation_examples=2, held_out=0.5)


def read_tags(folder: Path, root: Path) -> list[Any]:
    settings: Any = {"name": "t", "source": Source.local, "path": str(folder), "cache_dir": str(root)}
    return read_labelled(folder, TaggingConfig(**settings, sequence_length=32, evaluation_splits=["train"]))


def read_questions(folder: Path, root: Path) -> list[Any]:
    settings: Any = {"name": "q", "source": Source.local, "path": str(folder), "cache_dir": str(root)}
    settings |= {"sequence_length": 32, "stride": 5, "max_question_length": 12, "unanswerable": True}
    return read_labelled(folder, QuestionConfig(**settings, evaluation_splits=["train"]))


# Name: the file, its content, and its reader; every text has a "cat" in it.
KINDS: dict[str, tuple[str, Callable[[Path], object], Callable[[Path, Path], list[Any]]]] = {
    "corpus": ("corpus.txt", lambda file: write_corpus(file.parent, 20), read_corpus),
    "stream": ("corpus.txt", lambda file: write_corpus(file.parent, 8), read_stream),
    "blocks": ("corpus.txt", lambda file: write_corpus(file.parent, 8), read_blocks),
    "csv": ("train.csv", lambda file: write_table(file, PAIRS), read_table),
    "jsonl": ("train.jsonl", lambda file: write_table(file, PAIRS), read_table),
    "parquet": ("train.parquet", lambda file: write_table(file, PAIRS), read_table),
    "part": ("train.csv", lambda file: write_table(file, PAIRS), read_part_of_a_table),
    "conll": ("train.conll", lambda file: file.write_text(CONLL), read_tags),
    "questions": ("train.jsonl", lambda file: write_table(file, QUESTIONS), read_questions),
}  # fmt: skip


def replace_text(file: Path) -> None:
    """Replace the text by one of the same length and time."""
    status = file.stat()
    file.write_bytes(file.read_bytes().replace(b"cat", b"dog"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() * 2)


def become_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def retarget(file: Path) -> None:
    """Replace a file by a link to another file."""
    other = file.with_name(f"other{file.suffix}")
    shutil.copy2(file, other)
    replace_text(other)
    file.unlink()
    file.symlink_to(other)


CHANGES: dict[str, Callable[[Path], object]] = {
    "text": replace_text, "longer": lengthen, "deleted": Path.unlink, "folder": become_folder, "link": retarget,
}  # fmt: skip


class ChangingBuilder:
    """Build function that changes a file at one of the folders of a cache: before it is read for that, or after."""

    def __init__(self, at: int, change: Callable[[], object], *, before: bool, then: Callable[[], object]) -> None:
        self.at, self.change, self.before, self.then = at, change, before, then
        self.builds = 0
        self.original = cache._build

    def __call__(self, root: Path, name: str, build: Callable[[Path], None], *rest: Any) -> None:
        is_now = self.builds == self.at
        self.builds += 1

        def build_and_change(folder: Path) -> None:
            if is_now and self.before:
                self.change()
            build(folder)
            if is_now:
                (self.then if self.before else self.change)()

        self.original(root, name, build_and_change, *rest)


def restore(file: Path, write: Callable[[Path], object]) -> None:
    if file.is_dir():
        file.rmdir()
    file.unlink(missing_ok=True)
    write(file)


def expect_refusal(read: Callable[[], object], file: Path) -> None:
    with pytest.raises(DataError) as caught:
        read()
    message = str(caught.value)
    assert "\n" not in message
    assert str(file) in message


@pytest.mark.parametrize("kind", keep_one_quick(4, KINDS))
@pytest.mark.parametrize("before", mark_mostly_slow([True, False], lambda before: before))
def test_nothing_of_a_changing_file_is_stored(
    kind: str, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, write, read = KINDS[kind]
    file, old = tmp_path / name, tmp_path / "old"
    write(file)
    truth, builds = read(tmp_path, old), len(list(old.glob("*.lock")))
    changes = CHANGES if kind in ("corpus", "csv", "conll") else {"text": CHANGES["text"]}
    if kind == "parquet":  # has no text to be replaced
        changes = {"deleted": CHANGES["deleted"], "folder": CHANGES["folder"]}
    assert builds > 0
    for change in changes:
        for at in range(builds):
            root = tmp_path / f"{change} {at}"
            changer = ChangingBuilder(at, lambda: changes[change](file), before=before, then=lambda: None)  # noqa: B023
            with monkeypatch.context() as patch:
                patch.setattr(cache, "_build", changer)
                expect_refusal(lambda: read(tmp_path, root), file)  # noqa: B023
            assert changer.builds == at + 1
            assert len([folder for folder in root.iterdir() if folder.is_dir()]) == at, "those before it alone"
            restore(file, write)
            assert read(tmp_path, root) == truth


@pytest.mark.parametrize("kind", ["corpus", "jsonl", "conll"])
def test_a_file_that_changed_and_was_restored_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, write, read = KINDS[kind]
    file = tmp_path / name
    write(file)
    changer = ChangingBuilder(0, lambda: replace_text(file), before=True, then=lambda: restore(file, write))
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_build", changer)
        expect_refusal(lambda: read(tmp_path, tmp_path / "cache"), file)
    restore(file, write)
    assert read(tmp_path, tmp_path / "cache") == read(tmp_path, tmp_path / "other")


@pytest.mark.parametrize("kind", keep_one_quick(3, ["table", "corpus", "stream"]))
def test_a_changing_folder_in_place_of_a_hub_set_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, root = tmp_path / "hub" / "train.jsonl", tmp_path / "cache"
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    entry: Any = {"path": str(file.parent), "name": None}
    settings: Any = {"name": "t", "source": Source.hub, "cache_dir": str(root), "sequence_length": 16}
    loads: dict[str, Callable[[], Any]] = {
        "table": lambda: hub.load_hub_tables(entry)["train"].fingerprint(),
        "corpus": lambda: load_pretraining_data(CorpusConfig(**settings, hub=[entry]), make_tokenizer_config(), 0),
        "stream": lambda: load_language_data(
            StreamConfig(**settings | {"sequence_length": 4}, hub=[entry], text_column="text"),
            TokenizerConfig(kind="word", vocab_size=None), train_rows=2, evaluation_rows=1,
        ),
    }  # fmt: skip
    write_table(file, [{"text": f"The cat sees the dog number {number}."} for number in range(20)])
    original, loaded = datasets.load_dataset, []

    def load_and_change(*args: Any, **options: Any) -> Any:
        rows = original(*args, **options)
        if not loaded:
            write_table(file, [{"text": f"The fox sees the dog number {number}."} for number in range(20)])
        loaded.append(rows)
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load_and_change)
    expect_refusal(loads[kind], file.parent)
    assert not [folder for folder in root.glob("*") if folder.is_dir()]
    loads[kind]()


def test_streamed_documents_must_stay_the_same_from_epoch_to_epoch(tmp_path: Path) -> None:
    file = write_corpus(tmp_path)
    data = load_pretraining_data(
        make_corpus_config(file, tmp_path / "cache", streaming=True), make_tokenizer_config(), 0
    )
    data.train.set_epoch(0)
    first = [example["input_ids"].tolist() for example in data.train]
    data.train.set_epoch(0)
    assert [example["input_ids"].tolist() for example in data.train] == first
    passing = iter(data.train)
    next(passing)
    lengthen(file)
    expect_refusal(lambda: list(passing), file)
    expect_refusal(lambda: data.train.set_epoch(1), file)


def test_a_moved_file_is_the_same_source(tmp_path: Path) -> None:
    for name, content in (("a.txt", b"a\r\nb"), ("b.txt", b"a\r\nb"), ("c.txt", b"a\rb")):
        (tmp_path / name).write_bytes(content)
    first, second, third = (SourceFile("key", tmp_path / name).digest() for name in ("a.txt", "b.txt", "c.txt"))
    assert first == second != third


def test_options_beside_the_tokenizer_file_change_the_key(tmp_path: Path) -> None:
    """Set `split_special_tokens` of tokenizer_config.json, which decides whether "[MASK]" in a text is a token."""
    write_table(tmp_path / "train.csv", [{**row, "premise": "a [MASK] cat"} for row in PAIRS])
    results = []
    settings = tmp_path / "bert" / "tokenizer_config.json"
    tokenizer("bert").save_pretrained(settings.parent)
    for splits in (False, True):
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"split_special_tokens": splits}))
        results.append([read_table(tmp_path, tmp_path / root) for root in ("cache", f"fresh {splits}")])
    assert results[0][0] == results[0][1] != results[1][1]
    assert results[1][0] == results[1][1]


@pytest.mark.parametrize("load", [load_pretraining_data, load_language_data])
def test_the_held_out_text_is_a_source_of_training_and_evaluation(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that its documents are left out of the training text."""
    text, held_out = write_corpus(tmp_path, 20), write_corpus(tmp_path, 8, "held_out.txt")
    settings: Any = {"name": "t", "source": Source.local, "path": str(text), "evaluation_path": str(held_out)}
    is_corpus = load is load_pretraining_data
    dataset = (CorpusConfig if is_corpus else StreamConfig)(
        **settings, cache_dir=str(tmp_path / "c"), sequence_length=8
    )
    changer = ChangingBuilder(1 if is_corpus else 2, lambda: replace_text(held_out), before=False, then=lambda: None)
    monkeypatch.setattr(cache, "_build", changer)
    if is_corpus:
        expect_refusal(lambda: load(dataset, make_tokenizer_config(), 0), held_out)
    else:
        words = TokenizerConfig(kind="word", vocab_size=None)
        expect_refusal(lambda: load(dataset, words, train_rows=1, evaluation_rows=1), held_out)


def test_an_error_of_a_loader_process_is_its_last_line() -> None:
    from torch._utils import ExceptionWrapper

    try:
        raise DataError("dataset.path=a.txt: the file changed: now")
    except DataError:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(DataError) as caught:
        wrapped.reraise()
    assert str(caught.value) == "dataset.path=a.txt: the file changed: now"
