"""JSON files checked by the types of their fields."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal, NotRequired, Required, TypedDict

import pytest

from adadepth.errors import CheckpointError
from adadepth.runtime.json_files import (
    Count,
    JsonNumber,
    Positive,
    find_type_problem,
    parse_json,
    read_json,
    read_json_lines,
)
from tests.marks_support import keep_one_quick


class Inner(TypedDict, total=False):
    n: Required[Count]
    mean: JsonNumber


class Outer(TypedDict):
    name: str | None
    share: NotRequired[Positive]
    classes: dict[str, Inner]
    rows: NotRequired[list[tuple[float, Literal["a", "b"]]]]
    either: NotRequired[Inner | list[Inner] | None]
    anything: NotRequired[Any]
    foreign: NotRequired[object]
    is_done: NotRequired[bool]


GOOD: dict[str, Any] = {"name": None, "classes": {"all": {"n": 3, "mean": 1}}}
PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"name": 3}, "name must be a text or null, not 3"),
    ({"name": {}}, "name must be a text or null, not a mapping"),
    ({"classes": []}, "classes must be a mapping, not a list"),
    ({"classes": {"all": {}}}, "classes.all lacks n"),
    ({"classes": {"all": {"n": True}}}, "classes.all.n must be a whole number, not true"),
    ({"classes": {"all": {"n": 1.0}}}, "classes.all.n must be a whole number, not 1.0"),
    ({"classes": {"all": {"n": -1}}}, "classes.all.n must be at least 0, not -1"),
    ({"classes": {"all": {"n": 2**63}}}, f"classes.all.n must be a whole number of 64 bits, not {2**63}"),
    ({"classes": {"all": {"n": 1, "mean": "x"}}}, 'classes.all.mean must be a number, not "x"'),
    ({"share": 0}, "share must be above 0, not 0"),
    ({"share": None}, "share must be a number, not null"),
    ({"rows": [[1.0, "a"], [1.0, "c"]]}, 'rows.1.1 must be one of a, b, not "c"'),
    ({"rows": [[1.0]]}, "rows.0 must be a list of 2, not a list"),
    ({"rows": 7}, "rows must be a list, not 7"),
    ({"either": [{"n": 1}, {"n": "x"}]}, 'either.1.n must be a whole number, not "x"'),
    ({"either": "x"}, 'either must be a mapping or a list or null, not "x"'),
    ({"anything": [{"a": "\ud800"}]}, "anything.0.a has unpaired surrogates"),
    ({"is_done": 1}, "is_done must be true or false, not 1"),
]


def test_values_of_the_declared_types_have_no_problem() -> None:
    optional = {"share": 0.5, "rows": [[1, "a"], [2.5, "b"]], "either": [{"n": 0}], "anything": [1, None, {"x": ""}]}
    for value in (GOOD, GOOD | optional, GOOD | {"either": None, "newer": {"x": [1]}, "is_done": False}):
        assert find_type_problem(value, Outer) is None
        assert parse_json(json.dumps(value), Outer) == value
    assert find_type_problem({"n": 1, "mean": "nan"}, Inner) is None


@pytest.mark.parametrize(("change", "problem"), keep_one_quick(3, PROBLEMS), ids=[problem for _, problem in PROBLEMS])
def test_a_problem_names_field_and_value(change: dict[str, Any], problem: str) -> None:
    assert find_type_problem(GOOD | change, Outer) == problem


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"), (b"{", "not JSON"), (b"\xff", "codec"), (b"[" * 100_000, "nested too deeply"),
        (b'{"name": NaN}', "NaN is not a JSON number"),
        (b'{"name": 1e999, "classes": {}}', "name must be a text or null"),
        (b"[]", "the file must be a mapping, not a list"), (b"9" * 5000, "not JSON"), (b"{}", "the file lacks name"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_a_one_line_error(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_json(path, Outer)
    assert str(caught.value).startswith(f"{path}: is damaged: ")
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_a_regular_file_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "must be a file"), (".", "must be a file"), ("none", "no such file")):
        with pytest.raises(CheckpointError, match=words):
            read_json(tmp_path / name, Outer)


def test_nan_in_json_is_read_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(GOOD | {"foreign": [float("nan")]}))
    assert read_json(path, Outer, allow_nan=True)["foreign"][0] != 0
    with pytest.raises(CheckpointError, match="NaN"):
        read_json(path, Outer)


def test_a_wrong_line_is_named_and_a_truncated_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n{"n": 3')
    assert read_json_lines(path, Inner) == [{"n": 1}, {"n": 2}]
    path.write_text('{"n": 1}\n{"n": "x"}\n')
    with pytest.raises(CheckpointError, match=r'a\.jsonl: line 2 is damaged \(n must be a whole number, not "x"\)'):
        read_json_lines(path, Inner)
