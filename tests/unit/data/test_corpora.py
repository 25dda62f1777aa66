"""Documents of a corpus from every source, their split into training and evaluation, and errors of files."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from adadepth.config import StreamConfig
from adadepth.data import load_pretraining_data
from adadepth.data.streams.line_text import open_texts
from adadepth.data.text.corpora import Split, hash_document
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick

from .support import CorpusConfig, Separator, Source, flatten, make_corpus_config, make_tokenizer_config, write_corpus

TEXTS = [f"Document number {n}. It says {'so ' * n}much." for n in range(12)]


def read_documents(config: CorpusConfig) -> tuple[list[str], list[str]]:
    split = Split(config)
    return list(split.train()), list(split.evaluation())


def write_jsonl(file: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file


def write_parquet(file: Path, texts: list[str]) -> Path:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"body": texts, "number": list(range(len(texts)))}), file)
    return file


def write_arrow(file: Path, texts: list[str], *, as_stream: bool = True) -> Path:
    import pyarrow

    table = pyarrow.table({"body": texts})
    new = pyarrow.ipc.new_stream if as_stream else pyarrow.ipc.new_file
    with new(str(file), table.schema) as writer:
        writer.write_table(table)
    return file


KINDS = ["text", "jsonl", "jsonl.gz", "parquet", "arrow", "arrow file", "folder", "glob", "list", "hub"]


@pytest.mark.parametrize("kind", keep_one_quick(3, KINDS))
def test_every_source_gives_the_same_documents(tmp_path: Path, kind: str) -> None:
    rows = [{"body": text, "number": n} for n, text in enumerate(TEXTS)]
    changes: dict[str, Any] = {"text_column": "body"}
    if kind == "text":
        (tmp_path / "a.txt").write_text("\n\n".join(TEXTS))
        path: Any = tmp_path / "a.txt"
    elif kind == "parquet":
        path = write_parquet(tmp_path / "a.parquet", TEXTS)
    elif kind.startswith("arrow"):
        path = write_arrow(tmp_path / "a.arrow", TEXTS, as_stream=kind == "arrow")
    elif kind in ("jsonl", "jsonl.gz"):
        path = write_jsonl(tmp_path / f"a.{kind}", rows)
    else:
        (tmp_path / "in").mkdir()
        parts = [write_jsonl(tmp_path / "in" / "a.jsonl", rows[:6]), write_jsonl(tmp_path / "in" / "b.jsonl", rows[6:])]
        path = {"folder": tmp_path / "in", "glob": tmp_path / "in" / "*.jsonl"}.get(kind, parts)
    config = make_corpus_config(path, tmp_path, **changes)
    if kind == "list":
        config.path = [str(part) for part in path]
    if kind == "hub":
        config = CorpusConfig(name="x", source=Source.hub, text_column="body", evaluation_fraction=0.2,
                               hub=[{"path": str(tmp_path / "in")}])  # fmt: skip
    train, held_out = read_documents(config)
    assert sorted(train + held_out) == sorted(TEXTS)
    assert len(held_out) == 2  # a fifth of 12
    key = Split(config).key
    assert key == Split(config).key
    config.max_documents = 5
    assert Split(config).key != key
    assert sorted(flatten(read_documents(config))) == sorted(TEXTS[:5])
    if kind == "hub":
        config.streaming = True
        assert sorted(flatten(read_documents(config))) == sorted(TEXTS[:5])


@pytest.mark.parametrize("kind", ["arrow", "parquet", "jsonl"])
def test_shards_are_read_in_the_order_of_their_names(tmp_path: Path, kind: str) -> None:
    """Include a folder as `save_to_disk` writes it, where files about the data lie beside the shards."""
    folder = tmp_path / "shards"
    folder.mkdir()
    write = {
        "arrow": write_arrow,
        "parquet": write_parquet,
        "jsonl": lambda file, texts: write_jsonl(file, [{"body": text} for text in texts]),
    }[kind]
    for number in (2, 0, 1):
        write(folder / f"data-{number:05}-of-00003.{kind}", TEXTS[4 * number : 4 * number + 4])
    if kind == "arrow":
        (folder / "dataset_info.json").write_text('{"citation": ""}')
        (folder / "state.json").write_text('{"_fingerprint": "0"}')
    config = StreamConfig(name="x", source=Source.local, path=str(folder), text_column="body", evaluation_fraction=0.01)
    texts = open_texts(config)
    assert [*texts["train"].lines(), *texts["evaluation"].lines()] == TEXTS
    assert sorted(flatten(read_documents(make_corpus_config(folder, tmp_path, text_column="body")))) == sorted(TEXTS)
    columns = "body, number" if kind == "parquet" else "body"
    expected = f"{sorted(folder.glob('data*'))[0].name} has the columns {columns} (did you mean 'body'?)"
    assert read_message(make_corpus_config(folder, tmp_path, text_column="boddy")).endswith(expected)


@pytest.mark.slow
def test_a_streamed_hub_set_is_prepared_like_a_downloaded_one(tmp_path: Path) -> None:
    """Use shards on this disk in place of the hub."""
    for number in range(3):
        write_parquet(tmp_path / f"train-{number:05}-of-00003.parquet", TEXTS[4 * number : 4 * number + 4])
    lines = {}
    for streamed in (False, True):
        entry = {"path": str(tmp_path), "streamed": streamed}
        config = StreamConfig(name="x", source=Source.hub, hub=[entry], text_column="body", evaluation_fraction=0.01)
        texts = open_texts(config)
        lines[streamed] = [*texts["train"].lines(), *texts["evaluation"].lines()], texts["train"].key()
        corpus = CorpusConfig(name="x", source=Source.hub, hub=[entry], text_column="body", evaluation_fraction=0.2)
        assert sorted(flatten(read_documents(corpus))) == sorted(TEXTS)
    assert lines[True] == lines[False]
    assert lines[True][0] == TEXTS


def test_rows_of_a_hub_set_are_joined_to_documents(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [{"text": text} for text in TEXTS])
    config = CorpusConfig(name="x", source=Source.hub, hub=[{"path": str(tmp_path), "rows_per_document": "5"}])
    assert sorted(map(len, (text.split("\n") for part in read_documents(config) for text in part))) == [2, 5, 5]
    titled = [row for n, text in enumerate(TEXTS[:3]) for row in ("", f" = Title {n} = \n", "", text + "\n")]
    write_jsonl(tmp_path / "rows.jsonl", [{"text": row} for row in titled])
    config = CorpusConfig(name="x", source=Source.hub, hub=[{"path": str(tmp_path)}],
                           document_separator=Separator.heading)  # fmt: skip
    assert sorted(text.split("\n")[0] for part in read_documents(config) for text in part) == [
        " = Title 0 = ", " = Title 1 = ", " = Title 2 = "
    ]  # fmt: skip


def test_lines_of_a_hub_set_form_the_same_documents_as_its_files(tmp_path: Path) -> None:
    """Use WikiText with a line a row; a table's line that looks like a title but has neighbours begins no document."""
    article = [" ", " = {} = ", " ", " It has text . ", " = Goals ; A = ", " = Points = ", " ", " More . "]
    for folder in ("hub", "files"):
        (tmp_path / folder).mkdir()
    for split, file, names in (("train", "train", "abc"), ("validation", "valid", "de")):
        lines = [line.format(name) for name in names for line in article]
        rows = [line + "\n" if line.strip() else "" for line in lines]
        write_parquet(tmp_path / "hub" / f"{split}-00000-of-00001.parquet", rows)
        (tmp_path / "files" / f"wiki.{file}.tokens").write_text("\n".join(lines) + "\n")
    entries = [{"path": str(tmp_path / "hub"), "split": split} for split in ("train", "validation")]
    common: dict[str, Any] = {
        "name": "x", "source": Source.auto, "document_separator": Separator.heading, "text_column": "body",
        "hub": entries[:1], "evaluation_hub": entries[1:],
    }  # fmt: skip
    online, local = CorpusConfig(**common), CorpusConfig(**common, path=str(tmp_path / "files"))
    assert (online.source, local.source) == (Source.hub, Source.local)
    assert [len(side) for side in read_documents(online)] == [3, 2]
    assert read_documents(online) == read_documents(local)


FILES = {"wiki.train.tokens": "a", "wiki.valid.tokens": "b", "wiki.test.tokens": "c"}


@pytest.mark.parametrize(
    ("files", "changes", "train", "evaluation"),
    [
        (FILES, {}, {"a"}, {"b"}),
        (FILES, {"evaluation_path": "wiki.test.tokens"}, {"a"}, {"c"}),
        ({"train-1.txt": "a", "train-2.txt": "b", "dev.md": "c"}, {}, {"a", "b"}, {"c"}),
        ({"train.txt": "a", "validation.txt": "b", "dev.txt": "c"}, {}, {"a"}, {"b", "c"}),
    ],
)
def test_files_named_like_splits_are_these_splits(
    tmp_path: Path, files: dict[str, str], changes: dict[str, str], train: set[str], evaluation: set[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    changes = {key: str(tmp_path / value) for key, value in changes.items()}
    sides = read_documents(CorpusConfig(name="x", source=Source.local, path=str(tmp_path), **changes))
    assert [set(side) for side in sides] == [train, evaluation]


@pytest.mark.parametrize("other", ["README.md", "training.txt"])
def test_all_files_are_read_if_one_has_another_name(tmp_path: Path, other: str) -> None:
    for name, text in {**FILES, other: "d"}.items():
        (tmp_path / name).write_text(text)
    train, evaluation = read_documents(CorpusConfig(name="x", source=Source.local, path=str(tmp_path)))
    assert sorted(train + evaluation) == ["a", "b", "c", "d"]
    assert len(evaluation) == 1


def test_streamed_hub_sets_are_interleaved_and_divided_by_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for part in (0, 1):
            rows = [{"text": f"{name}{part}{n}"} for n in range(3)]
            write_jsonl(tmp_path / name / f"train-{part}.jsonl", rows)
    config = CorpusConfig(name="x", source=Source.hub, hub=[{"path": str(tmp_path / n)} for n in "ab"], streaming=True)
    corpus = Split(config).corpus
    assert [text[0] for text in corpus.rows(0, 1)] == ["a", "b"] * 6
    assert {text[1] for text in corpus.rows(0, 2)} == {"0"}
    assert {text[1] for text in corpus.rows(1, 2)} == {"1"}
    thirds = [set(corpus.rows(n, 3)) for n in range(3)]
    assert sum(map(len, thirds)) == len(set.union(*thirds)) == 12


def test_no_text_is_in_training_and_evaluation(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS + [text.replace(" ", "  ") for text in TEXTS]))
    train, held_out = read_documents(make_corpus_config(tmp_path / "a.txt", tmp_path))
    assert len(train) == 20
    assert len(held_out) == 4
    assert not {hash_document(text) for text in train} & {hash_document(text) for text in held_out}


def test_a_given_evaluation_file_is_held_out_and_dropped_from_training(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(TEXTS))
    (tmp_path / "b.txt").write_text("\n\n".join([*TEXTS[:2], "Something new."]))
    train, held_out = read_documents(
        make_corpus_config(tmp_path / "a.txt", tmp_path, evaluation_path=str(tmp_path / "b.txt"))
    )
    assert train == TEXTS[2:]
    assert held_out == [*TEXTS[:2], "Something new."]


@pytest.mark.parametrize("streaming", [False, True])
def test_split_is_stable_and_can_be_sent_to_a_worker(tmp_path: Path, streaming: bool) -> None:
    config = make_corpus_config(write_corpus(tmp_path), tmp_path, streaming=streaming)
    split = Split(config)
    train, held_out = list(split.train()), list(split.evaluation())
    assert (train, held_out) == read_documents(config)
    assert len(train) + len(held_out) == 40
    assert list(pickle.loads(pickle.dumps(split)).train()) == train
    shards = [list(split.train(n, 3)) for n in range(3)]
    assert sorted(flatten(shards)) == sorted(train)


def test_the_split_of_the_embedded_corpus_needs_no_file(tmp_path: Path) -> None:
    train, held_out = read_documents(CorpusConfig(name="python_docs", cache_dir=str(tmp_path), evaluation_fraction=0.1))
    assert len(held_out) == round(0.1 * (len(train) + len(held_out)))


def read_message(config: CorpusConfig) -> str:
    with pytest.raises(DataError) as caught:
        load_pretraining_data(config, make_tokenizer_config(), 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_missing_permission_is_named(tmp_path: Path) -> None:
    file = write_corpus(tmp_path)
    file.chmod(0)
    assert "no permission to read" in read_message(make_corpus_config(file, tmp_path / "cache"))


def test_text_that_is_not_utf8_is_named_with_its_offset(tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes("Größe\nzwei\n".encode() + b"na\xefve\n")
    offset = len("Größe\nzwei\n".encode()) + 2
    assert f"latin.txt: not UTF-8 at byte {offset} (0xef)" in read_message(make_corpus_config(file, tmp_path))
    file.write_bytes("\ufeffwith a mark\n\nand more\n\nthree".encode())
    assert sorted(flatten(read_documents(make_corpus_config(file, tmp_path))))[2] == "with a mark"
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    assert "rows.jsonl: not UTF-8 at byte 24 (0xff)" in read_message(make_corpus_config(rows, tmp_path))


def test_a_hub_name_without_network_fails_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = CorpusConfig(
        name="x", source=Source.hub, hub=[{"path": "some/set", "name": "en"}], cache_dir=str(tmp_path)
    )
    assert "dataset.hub=some/set/en: " in read_message(config)
    assert read_message(config).endswith(
        "; unset HF_HUB_OFFLINE to ask the hub, or read local files with dataset.path=..."
    )

    attempts = []

    def refuse_connection(request: urllib.request.Request, timeout: float) -> None:
        attempts.append(timeout)
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.urlopen", refuse_connection)
    text = read_message(config)
    assert "dataset.hub=some/set/en: the Hugging Face hub cannot be reached (Name or service not known)" in text
    assert "; read local files with dataset.path=..., or set HF_HUB_OFFLINE=1 to use what was downloaded" in text
    assert attempts == [5]
