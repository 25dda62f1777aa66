"""The toy family as an installed package, without building a wheel."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adadepth import run
from tests.plugins_support import install_package

TOY = Path(__file__).resolve().parent / "toy_family"
ROOT = ("--config-name", "router_hops")
DATA = ("dataset.train_examples=640", "dataset.max_evaluation_examples=64", "trainer.disable_tqdm=true")
SMALL = (
    *DATA, "model.num_hidden_layers=4", "model.hidden_size=32", "model.embedding_size=16",
    "model.intermediate_size=32", "trainer.per_device_train_batch_size=16", "trainer.max_steps=8",
    "trainer.eval_steps=4", "trainer.save_steps=4", "trainer.save_total_limit=null", "trainer.logging_steps=1",
)  # fmt: skip


@contextmanager
def install_toy_family(folder: Path, package: Path = TOY) -> Iterator[None]:
    """Put the toy family, or a changed one, on the path, with the entry points of its pyproject.toml."""
    project = tomllib.loads((TOY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry_points = project["entry-points"]
    with install_package(folder, project["name"], entry_points, package, version=project["version"]):
        _register_again()
        yield
    _register_again()


def _register_again() -> None:
    from adadepth.models.auto import register_auto_classes

    register_auto_classes.cache_clear()
    register_auto_classes()


def execute(*arguments: str) -> int:
    """Return the exit status of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["adadepth", *arguments])
        patch.setenv("HYDRA_FULL_ERROR", os.environ.get("HYDRA_FULL_ERROR", "0"))  # restored afterwards
        try:
            run.main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
