"""Selection of the quick cases among many parameters of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def mark_mostly_slow(cases: Iterable[Any], quick: Callable[[Any], bool]) -> list[Any]:
    """Return the cases as parameters of a test, with those that are not `quick` marked slow."""
    parameters = list(cases)
    assert any(quick(case) for case in parameters), "one of each kind stays quick"
    return [
        case if quick(case) else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in parameters
    ]


def keep_one_quick(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases as parameters of a test: the first of every `count` is quick, and the others are slow."""
    parameters = [case if hasattr(case, "marks") else pytest.param(*_get_values(case)) for case in cases]
    return [
        parameter
        if number % count == 0
        else pytest.param(*parameter.values, marks=[*parameter.marks, pytest.mark.slow], id=parameter.id)
        for number, parameter in enumerate(parameters)
    ]


def _get_values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
