"""Fixture of training tests: shortened timing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.figures_support import shorten_runs
from tests.puzzles_support import cache_generated_data


@pytest.fixture(scope="package", autouse=True)
def _shorten_runs() -> Iterator[None]:
    """Skip repeated timing, and draw the puzzles of a kind only once."""
    with shorten_runs(), cache_generated_data():
        yield
