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

from adadepth.config import LabelledConfig, Source, TokenizerConfig
from adadepth.data import load_labelled_data
from adadepth.data.labelled.columns import find_text_columns
from adadepth.data.labelled.splits import open_file_splits, open_table
from adadepth.data.text.table import DataTable
from adadepth.data.text.table_files import read_file_rows
from adadepth.errors import DataError
from tests.marks_support import keep_one_quick


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


def read_message(file: Path) -> str:
    with pytest.raises(DataError) as raised:
        read(open_table(file))
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- quotes of CSV

ROWS = "".join(f"neg,dull film {number}\n" for number in range(60))


@pytest.mark.parametrize(("text", "line"), [
    (f'label,text\npos,good\npos,"fine film\n{ROWS}', 3),
    (f'label,text\npos,good\npos,"fine film\n{ROWS}pos,"great film\n{ROWS}', 3),
    (f'label,text\npos,"a\nb"\npos,"fine" film\n{ROWS}', 4),
    (f'label,text\n{ROWS}pos,"two\nlines","x\n', 63),
    ('label,text\npos,"fine"  \n', 2),
    ('label,text\npos,"He said \\"no\\" twice"\n', 2),
    ('label,text\r\npos,"a\r\nb"\r\n"pos,x\r\n', 4),
    ('label,text\rpos,"a\rb"\r"pos,x\r', 4),
    ('label,"text\npos,a\n', 1),
])  # fmt: skip
def test_an_unclosed_quote_is_named_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    file = write(tmp_path, "train.csv", text)
    assert read_message(file).startswith(f"dataset.path={file}, line {line}: the field '\"")


@pytest.mark.parametrize("text", [
    'label,text\npos,"two\nlines, ""quoted"""\nneg,5" disk and "more"\n\npos,""\n"neg","a\r\nb"\n',
    "label,text\n", "label,text", "label\npos\n\nneg\n",
])  # fmt: skip
def test_csv_equals_the_table_of_pandas(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, "train.csv", text)
    expected = pd.read_csv(file, dtype=str, keep_default_na=False)
    assert read(open_table(file)) == expected.to_dict(orient="list")


@pytest.mark.parametrize(("name", "text", "message"), [
    ("a.csv", "text,label\na,b\na,b,c\n", ", line 3 has 3 fields, its header 2"),
    ("a.csv", 'text,label\n"a\nb",c\n\na\n', ", line 5 has 1 fields, its header 2"),
    ("a.tsv", "text\tlabel\na\tb\tc\n", ", line 2 has 3 fields, its header 2"),
    ("a.csv", "\ufefftext,text\na,b\n", ": its header has the column text 2 times"),
    ("a.tsv", "text\tlabel\nx\ry\tz\n", ", line 2 has 1 fields, its header 2"),
    ("a.csv", "text,label\n   \na,b\n", ", line 2 has 1 fields, its header 2"),
])  # fmt: skip
def test_a_row_that_differs_from_its_header_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = write(tmp_path, name, text)
    assert read_message(file) == f"dataset.path={file}{message}"


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


@pytest.mark.parametrize(("text", "message"), [
    ('{"text": "a"}\n{"text": "b"\n', r"line 2: Expecting ',' delimiter"),
    ('{"text": "a"}\n["b"]\n', "line 2 is not an object"),
    ('{"text": "a"}\n{"text": "\\ud800"}\n', "line 2 contains an unpaired surrogate"),
    ('[{"text": "a"}, 3]', "row 1 is not an object"),
    ('[{"text": "a"},\n{"text" 3}]', "line 2: Expecting ':' delimiter"),
    ('{\n "text": ["a"]\n}', "one object per line, or one list of objects, is needed"),
    ("[" * 100_000, "nested too deeply"),
])  # fmt: skip
def test_an_invalid_row_of_json_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, "a.jsonl", text)
    line = read_message(file)
    assert line.startswith(f"dataset.path={file}: not a readable json file (")
    assert message in line


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
    data = load(tmp_path)
    assert (data.summary["text_columns"], data.summary["label_column"]) == (texts, label)
    assert data.labels == tuple(f"{label} {row}" for row in range(2))
    is_said = any("chosen by name among the columns" in message for message in caplog.messages)
    assert is_said == ((texts, label) != (["sentence"], "label") or "text" in columns)


def load(folder: Path, **changes: Any) -> Any:
    config = LabelledConfig(
        name="t", source=Source.local, path=str(folder), cache_dir=str(folder / "cache"), sequence_length=16, **changes
    )
    return load_labelled_data(config, TokenizerConfig(vocab_size=40), 0)


@pytest.mark.parametrize(("columns", "changes", "message"), [
    (["text", "review", "label"], {}, "text_columns=sentence: FILE has the columns text, review, label; name the one"),
    (["a", "b", "label"], {}, "text_columns=sentence: FILE has the columns a, b, label; name the one or two"),
    (["text", "class", "target"], {}, "label_column=label: FILE has the columns text, class, target; name the label"),
    (["text", "label"], {"text_columns": ["sentence"]}, "text_columns=sentence: FILE has the columns text, label"),
    (["text", "class"], {"label_column": "label"}, "label_column=label: FILE has the columns text, class"),
    (["premise", "question1", "question2", "hypothesis", "label"], {}, "text_columns=sentence: FILE has"),
])  # fmt: skip
def test_ambiguous_or_configured_columns_are_not_replaced(
    tmp_path: Path, columns: list[str], changes: dict[str, Any], message: str
) -> None:
    for split in ("train", "validation"):
        write(tmp_path, f"{split}.csv", ",".join(columns) + "\n" + ",".join("a" for _ in columns) + "\n")
    with pytest.raises(DataError) as raised:
        load(tmp_path, **changes)
    assert f"dataset.{message}".replace("FILE", f"dataset.path={tmp_path}/train.csv") in str(raised.value)


def test_two_candidate_pairs_are_ambiguous() -> None:
    assert find_text_columns(["question", "passage", "context", "label"]) is None
    assert find_text_columns(["Text", "text"]) is None
    assert find_text_columns(["label"]) is None
