"""Runs whose files are read; see tests/training/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.figures_support import briefly_timed
from tests.puzzles_support import drawn_once


@pytest.fixture(scope="package", autouse=True)
def _briefly() -> Iterator[None]:
    """Time once what a run times often, and draw the puzzles of a kind once."""
    with briefly_timed(), drawn_once():
        yield
