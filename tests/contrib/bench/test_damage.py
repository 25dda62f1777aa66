"""Damaged files of a bench: a warning names them, and their runs are repeated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from adadepth.contrib.bench.page import build_bench_sections, read_results
from adadepth.contrib.bench.runs import BenchRun, select_readable_runs
from adadepth.contrib.bench.sweeper import BenchSweeper
from adadepth.tasks.grid_search import RUNS, find_finished_runs
from tests.marks_support import keep_one_quick
from tests.scripts_support import load_script
from tests.unit.report.synthetic import make_run

NAMES = ("text_masked.act.0", "text_masked.act.1")

Damage = Callable[[dict[str, Any]], Any]
DAMAGES: dict[str, Damage | bytes] = {
    "empty": b"", "cut": b'{"name": "text_masked.act.0", "ta', "a list": b"[]", "a number": b"7", "null": b"null",
    "no UTF-8": b"\xff\xfe\x00", "deep": b"[" * 100_000, "infinite": b'{"name": Infinity}', "1e999": b'{"seed": 1e999}',
    "half a character": b'{"name": "\\ud800"}', "empty mapping": b"{}",
    "no name": lambda r: r.pop("name"),
    "another's name": lambda r: r.update(name="text_masked.act.7"),
    "name is a number": lambda r: r.update(name=3),
    "no sets": lambda r: r.pop("sets"),
    "sets are none": lambda r: r.update(sets={}),
    "sets are a list": lambda r: r.update(sets=[]),
    "a set is a text": lambda r: r["sets"].update(held_out="x"),
    "no readings": lambda r: r["sets"]["held_out"].pop("readings"),
    "no points": lambda r: r["sets"]["held_out"]["readings"].update(run=[]),
    "a point lacks its score": lambda r: r["sets"]["held_out"]["readings"]["run"][0].pop("score"),
    "a score is a text": lambda r: r["sets"]["held_out"]["readings"]["run"][0].update(score="0.5"),
    "no updates": lambda r: r["sets"]["held_out"]["readings"]["run"][0].update(updates=0),
    "no work": lambda r: r["sets"]["held_out"]["readings"]["run"][0].update(macs=0.0),
    "steps are a text": lambda r: r.update(steps="800"),
    "steps below 0": lambda r: r.update(steps=-1),
    "no overrides": lambda r: r.update(overrides=None),
    "a seed of 400 digits": lambda r: r.update(seed=10**400),
    "max_updates is true": lambda r: r.update(max_updates=True),
}  # fmt: skip


@cache
def load_stored_results() -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        table = load_script("benchmarks/results_table.py", patch)
        return {result["name"]: json.dumps(result) for result in table.read_table()}


def read_result(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(load_stored_results()[name])
    return content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / f"{name}.json").write_text(json.dumps(read_result(name)))
    return tmp_path


def damage(path: Path, change: Damage | bytes) -> None:
    if isinstance(change, bytes):
        path.write_bytes(change)
        return
    content = read_result(NAMES[0])
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("change", keep_one_quick(2, DAMAGES))
def test_a_damaged_result_is_named_and_its_run_is_missing(
    folder: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        BenchRun("text_masked", "act", (), seed, tuple(read_result(NAMES[seed])["overrides"]), ()) for seed in (0, 1)
    ]
    sweeper = BenchSweeper({}, [0, 1], str(folder), str(folder))
    assert list(sweeper._read_known_results(runs)) == runs
    damage(folder / f"{NAMES[0]}.json", DAMAGES[change])
    known_results = sweeper._read_known_results(runs)
    assert list(known_results) == runs[1:]
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"warning: {folder / NAMES[0]}.json: ")
    assert line.endswith("; that run will be repeated")
    assert build_bench_sections(list(known_results.values()), {}, [runs[0].name])


@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling link", "link to a device"])
def test_only_regular_files_are_opened(folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Check a pipe, whose reader would wait for ever, and a device, which may have no end."""
    path = folder / f"{NAMES[0]}.json"
    path.unlink()
    make: dict[str, Callable[[], object]] = {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "dangling link": lambda: path.symlink_to(folder / "nowhere"),
        "link to a device": lambda: path.symlink_to("/dev/zero"),
    }
    make[kind]()
    assert [stored["name"] for stored in read_results(folder)] == [NAMES[1]]
    assert f"warning: {path}: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("run.json", "{"),
        ("run.json", '{"status": "finished", "result_hash": "a", "steps": 3}'),
        ("run.json", '{"status": "finished", "result_hash": "a"}'),
        ("run.json", '{"status": "finished"}'),
        ("halting.json", '{"classes": {}}'),
        ("halting.json", '{"classes": 3}'),
        ("halting.json", None),
    ],
)
def test_a_damaged_run_of_a_bench_is_repeated(
    tmp_path: Path, file: str, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / RUNS / "name" / "2026-01-01", evaluations=1)
    record = json.loads((run / "run.json").read_text())
    record |= {"status": "finished", "result_hash": "a", "steps": {"done": 3, "planned": 3}}
    (run / "run.json").write_text(json.dumps(record))
    halting = json.loads((run / "halting.json").read_text())
    (run / "halting.json").write_text(json.dumps({**halting, "set": "held_out"}))
    assert select_readable_runs(find_finished_runs(tmp_path)) == {"a": run}
    (run / file).unlink() if content is None else (run / file).write_text(content)
    assert select_readable_runs(find_finished_runs(tmp_path)) == {}
    printed = capsys.readouterr().out
    assert printed.count("\n") == (0 if content == '{"status": "finished"}' else 1)
    assert file in printed or not printed
