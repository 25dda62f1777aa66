"""Columns of a file that are predicted by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from adadepth.errors import DataError
from adadepth.prediction.tabular import resolve_input_columns


@pytest.mark.parametrize(("name", "text", "configured", "trained", "columns"), [
    ("a.csv", "text,x\na,b\n", None, [], ["text"]), ("a.csv", "sentence,text\na,b\n", None, ["text"], ["text"]),
    ("a.csv", "sentence,text\na,b\n", None, ["review"], ["sentence"]), ("a.csv", "text\na\n", ["x"], ["text"], ["x"]),
    ("a.jsonl", '{"premise": "a", "hypothesis": "b"}\n', None, [], ["premise", "hypothesis"]),
    ("a.txt", "a\tb\n", None, ["premise", "hypothesis"], ["premise", "hypothesis"]),
    ("a.txt", "a\n", None, [], ["sentence"]),
    ("a.csv", "text,x\n", None, [], ["sentence"]), ("a.csv", "text\na\n", [], ["text"], []),
])  # fmt: skip
def test_input_columns_are_found_by_name(
    tmp_path: Path, name: str, text: str, configured: list[str] | None, trained: list[str], columns: list[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert resolve_input_columns(tmp_path / name, configured, trained) == columns


def test_ambiguous_columns_are_listed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\nc,d\n")
    with pytest.raises(DataError, match=r"^input=\S+a.csv: has the columns a, b; name the columns of the texts"):
        resolve_input_columns(tmp_path / "a.csv", None, [])
