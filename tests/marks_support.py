"""What of many cases of one kind the quick tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], quick: Callable[[Any], bool]) -> list[Any]:
    """The cases as parameters of a test: those that are not `quick` run with the slow tests."""
    found = list(cases)
    assert any(quick(case) for case in found), "one of each kind stays quick"
    return [
        case if quick(case) else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in found
    ]


def quick_one_in(count: int, cases: Iterable[Any]) -> list[Any]:
    """The cases as parameters of a test, of which the first of every `count` is quick, and the others are slow."""
    parameters = [case if hasattr(case, "marks") else pytest.param(*_values(case)) for case in cases]
    return [
        each if number % count == 0 else pytest.param(*each.values, marks=[*each.marks, pytest.mark.slow], id=each.id)
        for number, each in enumerate(parameters)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
