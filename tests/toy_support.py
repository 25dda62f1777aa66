"""The toy family as an installed package: what a wheel of it would put on the path, without a wheel."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adadepth import run
from adadepth.families import registry

TOY = Path(__file__).resolve().parent / "toy_family"


@contextmanager
def toy_family_installed(folder: Path) -> Iterator[None]:
    """Put the toy family on the path, with the entry points of its pyproject.toml in a dist-info folder."""
    project = tomllib.loads((TOY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    header = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (about / "METADATA").write_text(header, encoding="utf-8")
    lines = [f"{name} = {place}" for name, place in project["entry-points"][registry.GROUP].items()]
    (about / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *lines, ""]), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOY))
        patch.syspath_prepend(str(folder))
        _find_families_anew()
        yield
    _find_families_anew()


def _find_families_anew() -> None:
    from adadepth.families.auto import register_auto_classes

    registry.families.cache_clear()
    register_auto_classes.cache_clear()
    register_auto_classes()


def execute(*arguments: str) -> int:
    """The exit status of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["adadepth", *arguments])
        patch.setenv("HYDRA_FULL_ERROR", os.environ.get("HYDRA_FULL_ERROR", "0"))  # restored afterwards
        try:
            run.main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
