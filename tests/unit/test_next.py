"""Summary that `make test-next` prints at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts_support import load_script

RESULTS = """<testsuites><testsuite>
<testcase classname="tests.a" name="passes"/>
<testcase classname="tests.a" name="skipped"><skipped message="no device"/></testcase>
<testcase classname="tests.b" name="one"><failure message="AttributeError: gone&#10;second line"/></testcase>
<testcase classname="tests.b" name="two"><failure message="AttributeError: gone"/></testcase>
<testcase classname="tests.c" name="imports"><error message="ImportError: no fsdp"/></testcase>
</testsuite></testsuites>"""


def test_errors_are_counted_and_the_commonest_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results.xml").write_text(RESULTS)
    assert list(load_script(".ci/next.py", monkeypatch).summarise(tmp_path / "results.xml")) == [
        "1 tests pass, 1 are skipped, 3 break",
        "     2 x AttributeError: gone   (first: tests.b::one)",
        "     1 x ImportError: no fsdp   (first: tests.c::imports)",
    ]


def test_the_locked_versions_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(load_script(".ci/next.py", monkeypatch).read_locked()) == {"transformers", "torch", "accelerate"}


def test_the_lowest_versions_are_those_of_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = load_script(".ci/next.py", monkeypatch).read_lowest().decode().splitlines()
    assert "torch==2.11.*" in lines
    assert "hydra-core==1.3.6" in lines
    assert "optuna==4.5.*" in lines
    assert not [line for line in lines if line.startswith(("pytest", "mypy"))]
