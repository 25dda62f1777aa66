"""Runs whose files are read; see tests/training/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.figures_support import shorten_runs
from tests.puzzles_support import cache_generated_data


@pytest.fixture(scope="package", autouse=True)
def _briefly() -> Iterator[None]:
    """Time once what a run times often, and draw the puzzles of a kind once."""
    with shorten_runs(), cache_generated_data():
        yield
