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
