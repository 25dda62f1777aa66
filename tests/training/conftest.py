"""Runs whose files are read: the parts of a run that only cost time, and one checkpoint to start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adadepth import tasks
from adadepth.training import speed
from tests.configs.support import configured
from tests.figures_support import undrawn


@pytest.fixture(autouse=True)
def _undrawn() -> Iterator[None]:
    """Drawing is more than half of a run of seconds: a module's shared run draws its figures, the others do not.

    The README's runs, in tests/cli, draw those of every family.
    """
    with undrawn(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "_SECONDS", 0.0)  # executions are compared on one batch
        yield


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the first family with its tokenizer, as its own training would leave it."""
    folder = tmp_path_factory.mktemp("pretrained")
    with undrawn():
        tasks.run(
            configured(
                "act_tiny", "debug=default", f"output_dir={folder}", "trainer.disable_tqdm=true",
                "trainer.halting_statistics=false",
            )
        )  # fmt: skip
    (model,) = folder.glob("act_tiny/*/model")
    return model
