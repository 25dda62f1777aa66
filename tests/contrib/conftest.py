"""Runs whose files are read; see tests/training/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.figures_support import briefly_timed, undrawn
from tests.puzzles_support import drawn_once


@pytest.fixture(scope="package", autouse=True)
def _briefly() -> Iterator[None]:
    """Leave out drawing, which is more than half of a run of seconds and which nobody looks at here."""
    with undrawn(), briefly_timed(), drawn_once():
        yield
