"""Run files with values of wrong types: a command reports what is damaged in one line, a report omits it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from adadepth.errors import CheckpointError
from adadepth.report.file_types import FILE_TYPES
from adadepth.report.pages import write_report
from adadepth.report.run_files import read_run
from adadepth.runs.directory import read_record
from adadepth.runtime.json_files import find_type_problem
from tests.marks_support import mark_mostly_slow
from tests.pages_support import read_report
from tests.unit.report.synthetic import make_run
from tests.unit.report.synthetic_exits import add_exit_files

OTHERS: dict[str, Any] = {
    "budgets.json": {
        "unit": "updates", "set": "inside", "knob": "threshold", "fitted_on": 4, "measured_on": 4,
        "rows": [{"target": 2.0, "fit": {"level": 0.5, "depth": 2.0, "is_reached": True}, "mean": 2.0, "std": 0.5,
                  "executed_over_full": 0.5, "adaptive_over_full": 0.5, "metrics": {"score": 0.9, "loss": 0.1}}],
    },
    "rivals.json": {
        "rows": [{"kind": kind, "run": "a", "seed": 0, "mean": 2.0, "std": 0.5, "max_depth": 3, "executed_macs": 9.0,
                  "adaptive_macs": 5.0, "seconds": 3.0, "metrics": {"eval/loss": 1.0, "eval/score": 0.5}}
                 for kind in ("adaptive", "fixed")],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"), evaluations=2)
    add_exit_files(folder)
    for name, value in OTHERS.items():
        (folder / name).write_text(json.dumps(value))
    files = read_run(folder)
    for name in ("exits.json", "exit_rules.json", *OTHERS):
        assert files.of(name), files.missing
    write_report(read_report(folder))
    return folder


def list_paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the paths of all fields of a JSON value, however deep; of a list its first and its last member."""
    if isinstance(value, dict):
        return [before, *(path for key, child in value.items() for path in list_paths(child, (*before, key)))]
    if isinstance(value, list) and value:
        ends = sorted({0, len(value) - 1})
        return [before, *(path for number in ends for path in list_paths(value[number], (*before, number)))]
    return [before]


def replace_field(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replace_field(value[path[0]], path[1:], new)
    return copy


WRONG = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(-1e300, 1e300), st.text(max_size=3),
    st.just([]), st.just({}), st.just([None]), st.just({"a": 1}), st.just([[1, "x"]]), st.just("nan"),
)  # fmt: skip
NAMES = ("run.json", "halting.json", "exits.json", "exit_rules.json", *OTHERS)
LINES = ("metrics.jsonl", "sentences.jsonl")
HEALTH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)


def change_field(data: st.DataObject, run: Path, name: str) -> tuple[Any, ...]:
    """Replace a field of a file by another value, and return its path."""
    file = run / name
    if name in LINES:
        first, *rest = file.read_text().splitlines()
        value = json.loads(first)
    else:
        rest, value = [], json.loads(file.read_text())
    path = data.draw(st.sampled_from(list_paths(value)))
    changed = json.dumps(replace_field(value, path, data.draw(WRONG)))
    file.write_text("\n".join([changed, *rest]))
    return path


@pytest.mark.parametrize("name", mark_mostly_slow(NAMES, ("run.json", "exits.json").__contains__))
@given(data=st.data())
@HEALTH
def test_a_field_of_another_type_is_named_and_its_file_omitted(
    run: Path, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    shutil.copy(run / name, tmp_path / name)
    path = change_field(data, tmp_path, name)
    files = read_run(tmp_path)
    contents = files.of(name) if name not in ("run.json", "halting.json") else {**files.run, **files.halting}
    problem = find_type_problem(json.loads((tmp_path / name).read_text()), FILE_TYPES[name])
    if problem is None:
        assert name not in files.missing
        return
    assert (contents, files.missing[name]) == ({}, f"{name} is damaged ({problem})")
    assert "\n" not in problem
    field_name = problem.split(" ")[0]
    assume(all(" " not in str(part) and "." not in str(part) for part in path))
    assert not path or field_name.startswith(str(path[0])) or " lacks " in problem
    if name == "run.json":
        with pytest.raises(CheckpointError, match=r"run\.json: is damaged"):
            read_record(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, *LINES])
@given(data=st.data())
@settings(HEALTH, max_examples=10)
def test_a_report_is_written_for_any_content_of_a_file(
    run: Path, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    for file in (*NAMES, *LINES, "config.yaml"):
        shutil.copy(run / file, tmp_path / file)
    change_field(data, tmp_path, name)
    assert write_report(read_report(tmp_path)).is_file()
