"""Locations of rows, named alike in training, prediction and readers of words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adadepth.data.labelled.splits import open_table
from adadepth.data.text.json_rows import read_json_rows
from adadepth.data.text.table import ROW_LOCATIONS, concatenate_tables

CONLL = "# a comment\nEU\tB-ORG\nrejects\tO\n\n-DOCSTART-\tO\n\nLondon\tB-LOC\ncalls\tO\n"


def locate(*files: Path) -> list[str]:
    table = concatenate_tables([open_table(file) for file in files])
    return [str(location) for batch in table.read_batches() for location in batch[ROW_LOCATIONS]]


@pytest.mark.parametrize(("name", "content", "numbers"), [
    ("a.csv", 'text\n"two\nlines"\n\nlast\n', ["line 2", "line 5"]),
    ("a.tsv", "text\nfirst\n\nlast\n", ["line 2", "line 4"]),
    ("a.jsonl", '\n{"text": "a"}\n{"text": "b"}\n', ["line 2", "line 3"]),
    ("a.json", '[{"text": "a"},\n{"text": "b"}]', ["row 0", "row 1"]),
    ("a.conll", CONLL, ["line 2", "line 7"]),
])  # fmt: skip
def test_text_formats_have_lines_and_others_row_numbers(
    tmp_path: Path, name: str, content: str, numbers: list[str]
) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    assert locate(file) == [f"dataset.path={file}, {number}" for number in numbers]


def test_rows_of_several_files_are_numbered_in_their_own_file(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        file.write_text(json.dumps([{"text": "a"}, {"text": "b"}]), encoding="utf-8")
    assert locate(*files) == [f"dataset.path={file}, row {number}" for file in files for number in range(2)]
    assert [str(location) for location, _ in read_json_rows("input", files[0])] == [
        f"input={files[0]}, row 0", f"input={files[0]}, row 1"
    ]  # fmt: skip
