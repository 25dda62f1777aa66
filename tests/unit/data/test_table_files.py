"""Files of tables: read like other readers do, or refused with the name of the file and the line."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from adadepth.config import LabelledConfig, Source
from adadepth.data.labelled.columns import find_text_columns
from adadepth.data.labelled.splits import open_file_splits, open_table
from adadepth.data.text.table import DataTable
from adadepth.data.text.table_files import read_file_rows
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick

from .labelled_support import load


def read(table: DataTable) -> dict[str, list[Any]]:
    """Return the columns of a table."""
    columns: dict[str, list[Any]] = {name: [] for name in table.columns}
    for batch in table.batches():
        for name in table.columns:
            columns[name] += batch[name]
    return columns


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_bytes(text.encode())
    return file


# --- quotes of CSV


@pytest.mark.parametrize("text", [
    'label,text\npos,"two\nlines, ""quoted"""\nneg,5" disk and "more"\n\npos,""\n"neg","a\r\nb"\n',
    "label,text\n", "label,text", "label\npos\n\nneg\n",
])  # fmt: skip
def test_csv_equals_the_table_of_pandas(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, "train.csv", text)
    expected = pd.read_csv(file, dtype=str, keep_default_na=False)
    assert read(open_table(file)) == expected.to_dict(orient="list")


# --- JSON

OBJECTS: list[dict[str, Any]] = [
    {"text": "2020-01-01", "label": "2021-05-06T07:08:09", "date": "2020-01-01 10:00:00", "created_at": 3},
    {"text": "1", "label": "01", "date": None, "created_at": 1.5, "more": [1, "a", {"b": None}]},
    {"text": "a\u2028b\x85c\r\nd", "label": 3, "date": {"a": 1}, "created_at": "x"},
    {"text": "", "label": None, "date": [], "created_at": 2**70},
]


@pytest.mark.parametrize("kind", ["lines", "blank", "list", "packed"])
def test_json_equals_the_parsed_lines(tmp_path: Path, kind: str) -> None:
    """Keep dates as texts, and numbers beside texts as they are."""
    text = "".join(json.dumps(row) + ("\n\n \n" if kind == "blank" else "\n") for row in OBJECTS)
    file = write(tmp_path, "a.jsonl", json.dumps(OBJECTS) if kind == "list" else text)
    if kind == "packed":
        file = tmp_path / "a.jsonl.gz"
        file.write_bytes(gzip.compress(text.encode()))
    names = ["text", "label", "date", "created_at", "more"]
    assert read(open_table(file)) == {name: [row.get(name) for row in OBJECTS] for name in names}


def test_texts_of_a_corpus_equal_those_of_the_table(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", "".join(f'{{"text": "{day}"}}\n' for day in ("2020-01-01", "2020-01-02")))
    assert list(read_file_rows("dataset.path", file, "text")) == ["2020-01-01", "2020-01-02"]
    with pytest.raises(DataError, match=r"^dataset.text_column=txt: .* has the columns text \(did you mean 'text'"):
        list(read_file_rows("dataset.path", file, "txt"))


# --- folders of `save_to_disk`


def save_dataset(folder: Path) -> Path:
    splits = {
        name: Dataset.from_dict({"text": [f"{name} {row}" for row in range(4)], "label": ["a", "b"] * 2})
        for name in ("train", "test", "valid")
    }
    DatasetDict(splits).save_to_disk(str(folder))
    return folder


def test_a_saved_data_set_has_its_splits(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path / "saved")
    tables = open_file_splits(str(folder), ["train", "validation", "test"])
    assert {name: read(table)["text"][0] for name, table in tables.items()} == {
        "train": "train 0", "validation": "valid 0", "test": "test 0",
    }  # fmt: skip
    tables = open_file_splits({"train": str(folder / "test")}, ["train"])
    assert read(tables["train"])["text"] == [f"test {row}" for row in range(4)]


def test_a_saved_table_has_no_splits(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path / "saved") / "train"
    with pytest.raises(DataError, match=r"is one table of save_to_disk, without splits; give dataset.path={train:"):
        open_file_splits(str(folder), ["train"])
    next(folder.glob("*.arrow")).write_bytes(b"nothing")
    with pytest.raises(DataError, match="not a readable folder of save_to_disk"):
        open_file_splits({"train": str(folder)}, ["train"])


def test_a_saved_selection_has_only_selected_rows(tmp_path: Path) -> None:
    """Read only the selected rows of the file."""
    rows = Dataset.from_dict({"text": list("abcd"), "label": list("xyxy")}).select([3, 1])
    rows.with_format("numpy").save_to_disk(str(tmp_path / "saved"))
    assert read(open_table(tmp_path / "saved")) == {"text": ["d", "b"], "label": ["y", "y"]}


@pytest.mark.parametrize("is_folder", [False, True], ids=["a file", "the only one of a folder"])
def test_one_table_is_the_training_split(tmp_path: Path, is_folder: bool) -> None:
    file = write(tmp_path, "mine.csv", "text,label\n" + "".join(f"text {n},{n % 2}\n" for n in range(20)))
    tables = open_file_splits(str(tmp_path if is_folder else file), ["train", "test"], "train")
    assert list(tables) == ["train"]
    assert read(tables["train"])["text"] == pd.read_csv(file)["text"].tolist()


def test_the_only_table_of_a_folder_is_the_split_of_its_name(tmp_path: Path) -> None:
    write(tmp_path, "test.csv", "text,label\na,b\n")
    assert list(open_file_splits(str(tmp_path), ["train", "test"], "train")) == ["test"]


# --- columns with usual names


@pytest.mark.parametrize(("columns", "texts", "label"), keep_one_quick(3, [
    (["text", "label"], ["text"], "label"), (["Review", "Class"], ["Review"], "Class"),
    (["sentence1", "sentence2", "label", "idx"], ["sentence1", "sentence2"], "label"),
    (["hypothesis", "premise", "labels"], ["premise", "hypothesis"], "labels"),
    (["question", "passage", "label"], ["question", "passage"], "label"),
    (["id", "title", "text", "label"], ["text"], "label"), (["sms", "label"], ["sms"], "label"),
    (["text", "mood"], ["text"], "mood"), (["text", "sentence", "label"], ["sentence"], "label"),
    (["label", "class", "text"], ["text"], "label"),
]))  # fmt: skip
def test_columns_with_usual_names_are_used_with_a_message(
    tmp_path: Path, columns: list[str], texts: list[str], label: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rows = [",".join(f"{name} {row}" for name in columns) for row in range(2)]
    for split in ("train", "validation"):
        write(tmp_path, f"{split}.csv", "\n".join([",".join(columns), *rows]) + "\n")
    local: dict[str, Any] = {"source": Source.local, "path": str(tmp_path), "cache_dir": str(tmp_path / "cache")}
    data = load(LabelledConfig(name="t", sequence_length=16, **local))
    assert (data.summary["text_columns"], data.summary["label_column"]) == (texts, label)
    assert data.labels == tuple(f"{label} {row}" for row in range(2))
    is_said = any("chosen by name among the columns" in message for message in caplog.messages)
    assert is_said == ((texts, label) != (["sentence"], "label") or "text" in columns)


def test_two_candidate_pairs_are_ambiguous() -> None:
    assert find_text_columns(["question", "passage", "context", "label"]) is None
    assert find_text_columns(["Text", "text"]) is None
    assert find_text_columns(["label"]) is None
