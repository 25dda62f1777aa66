"""Runs whose files are read: the parts of a run that only cost time, and one checkpoint to start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adadepth import tasks
from tests.configs.support import configured
from tests.figures_support import briefly_timed
from tests.puzzles_support import drawn_once


@pytest.fixture(scope="package", autouse=True)
def _briefly() -> Iterator[None]:
    """Time once what a run times often, and draw the puzzles of a kind once."""
    with briefly_timed(), drawn_once():
        yield


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the first family with its tokenizer, as its own training would leave it."""
    folder = tmp_path_factory.mktemp("pretrained")
    with briefly_timed():
        tasks.run(
            configured(
                "act_tiny", "debug=default", f"output_dir={folder}", "trainer.disable_tqdm=true",
                "trainer.halting_statistics=false",
            )
        )  # fmt: skip
    (model,) = folder.glob("act_tiny/*/model")
    return model
