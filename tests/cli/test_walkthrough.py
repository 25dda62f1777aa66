"""The walk through the code names functions that run, in the order in which they run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from adadepth.run import main
from tests.sources_support import PACKAGE, ROOT, read_source

PAGE = (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8")
TRAIN = ["--config-name", "act_hops", "debug=default"]
EXIT = [*TRAIN, "mode=evaluate", "checkpoint=latest", "exit_rules=[confidence:0.9]"]
# The most files that a reader opens on each walk.
WALKS = {
    "Training step": (TRAIN, 9),
    "Depth budget": (TRAIN, 6),
    "Early exit": (EXIT, 10),
    "From depth trace to report": (TRAIN, 15),
}
REFERENCES = "Reference and fast path"


def list_functions(walk: str) -> list[str]:
    """Return the functions of a walk, as `file:function`."""
    section = PAGE.split(f"## {walk}\n")[1].split("\n## ")[0]
    return [
        f"{file}:{name}" for file, name in re.findall(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", section, re.MULTILINE)
    ]


def record_calls(run: Callable[[], Any]) -> list[str]:
    """Return the package's functions in the order of their calls during a run."""
    calls: list[str] = []
    package = f"{PACKAGE}{os.sep}"

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(package):
            calls.append(f"{file[len(package) :].replace(os.sep, '/')}:{frame.f_code.co_qualname}")

    usual = sys.gettrace()
    sys.settrace(note)
    try:
        run()
    finally:
        sys.settrace(usual)
    return calls


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """Return the calls of a training, and of its evaluation under an exit rule, by the command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("walk"))
        calls_by_command = {}
        for arguments in (TRAIN, EXIT):
            patch.setattr(sys, "argv", ["adadepth/run.py", *arguments])
            calls_by_command[" ".join(arguments)] = record_calls(main)
        yield calls_by_command


def find_misplaced(functions: list[str], calls: list[str]) -> list[str]:
    """Return the functions that are not called after the one before them."""
    position, missing = 0, []
    for name in functions:
        try:
            position = calls.index(name, position)
        except ValueError:
            missing.append(name)
    return missing


def test_a_wrong_order_is_found() -> None:
    assert find_misplaced(["a", "b"], ["a", "c", "b"]) == []
    assert find_misplaced(["b", "a"], ["a", "c", "b"]) == ["a"]


def test_every_function_of_the_page_exists() -> None:
    """Check names only; the slow test below checks the order."""
    for file, name in (row.split(":") for walk in WALKS for row in list_functions(walk)):
        words = re.findall(r"^\s*(?:def|class) (\w+)", read_source(PACKAGE / file), re.MULTILINE)
        assert set(name.split(".")) <= set(words), f"{file}: {name}"


@pytest.mark.slow
@pytest.mark.parametrize("walk", WALKS)
def test_functions_of_a_walk_run_in_its_order(walk: str, calls: dict[str, list[str]]) -> None:
    arguments, most = WALKS[walk]
    assert len(list_functions(walk)) >= 5
    assert find_misplaced(list_functions(walk), calls[" ".join(arguments)]) == []
    assert len({row.partition(":")[0] for row in list_functions(walk)}) <= most


def test_every_walk_of_the_page_is_tested() -> None:
    assert re.findall(r"^## (.*)$", PAGE, re.MULTILINE) == [*WALKS, REFERENCES]


def list_reference_lines() -> list[tuple[str, str, str, str]]:
    """Return family, line of its reference, file and function of the fast path, of every row of the last table."""
    section, family, table = PAGE.split(f"## {REFERENCES}\n")[1], "", []
    for name, line, file, function in re.findall(
        r"^\| (\S*) ?\| `(.+)` \| `(\S+)` \| `(\S+)` \|$", section, re.MULTILINE
    ):
        family = name.strip("`") or family
        table.append((family, line, file, function))
    return table


def test_reference_lines_and_fast_path_functions_exist() -> None:
    table = list_reference_lines()
    assert {family for family, *_ in table} == {path.parent.name for path in PACKAGE.rglob("reference.py")}
    for family, line, file, function in table:
        assert line in read_source(PACKAGE / "models" / family / "reference.py"), line
        words = re.findall(r"^\s*(?:def|class) (\w+)", read_source(PACKAGE / file), re.MULTILINE)
        assert set(function.split(".")) <= set(words), f"{file}: {function}"
