"""Fixtures of training tests: shortened timing, and one pretrained checkpoint to start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adadepth import tasks
from tests.configs.support import configured
from tests.figures_support import shorten_runs
from tests.puzzles_support import cache_generated_data


@pytest.fixture(scope="package", autouse=True)
def _shorten_runs() -> Iterator[None]:
    """Skip repeated timing, and draw the puzzles of a kind only once."""
    with shorten_runs(), cache_generated_data():
        yield


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a checkpoint of the first family with its tokenizer, and return its model folder."""
    folder = tmp_path_factory.mktemp("pretrained")
    with shorten_runs():
        tasks.run(
            configured(
                "act_tiny", "debug=default", f"output_dir={folder}", "trainer.disable_tqdm=true",
                "trainer.halting_statistics=false",
            )
        )  # fmt: skip
    (model,) = folder.glob("act_tiny/*/model")
    return model
