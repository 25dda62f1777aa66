"""Installed packages with entry points, as importlib.metadata sees them: a dist-info folder on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from adadepth.config.kinds import kinds
from adadepth.config.modes import modes
from adadepth.halting.exit_rules import GROUP as EXITS
from adadepth.halting.exit_rules import exit_rules
from adadepth.halting.rules import halting_rules
from adadepth.halting.step_losses import GROUP as LOSSES
from adadepth.halting.step_losses import installed_step_losses
from adadepth.halting.units import GROUP as UNITS
from adadepth.halting.units import installed_halting_units
from adadepth.models import public_names, registry
from adadepth.training.trackers import trackers


@contextmanager
def install_package(
    folder: Path, name: str, entry_points: Mapping[str, Mapping[str, str]], *sources: Path, version: str = "1.0"
) -> Iterator[None]:
    """Put a package with entry points, group -> name -> object, on the path; its modules lie in `sources`, or in
    `folder`.
    """
    metadata_folder = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata_folder.mkdir()
    (metadata_folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8"
    )
    lines = [
        line
        for group, objects in entry_points.items()
        for line in (f"[{group}]", *(f"{key} = {target}" for key, target in objects.items()), "")
    ]
    (metadata_folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for target in (*sources, folder):
            patch.syspath_prepend(str(target))
        clear_plugin_caches()
        yield
    clear_plugin_caches()


@contextmanager
def example_extensions(folder: Path) -> Iterator[None]:
    """Install the halting unit, step loss and exit rule of examples/plugin as a package described in `folder`."""
    entries = {
        UNITS: {"movement": "adadepth_reviews.units:Movement"},
        LOSSES: {"competence": "adadepth_reviews.losses:Competence"},
        EXITS: {"agreement": "adadepth_reviews.exits:Agreement"},
    }
    with install_package(folder, "adadepth-reviews", entries, Path(__file__).parents[1] / "examples/plugin"):
        yield
    for name in [name for name in sys.modules if name.split(".")[0] == "adadepth_reviews"]:
        sys.modules.pop(name)


def clear_plugin_caches() -> None:
    """Clear the caches of plugins of installed packages."""
    for lookup in (
        public_names, registry.families, kinds, modes, halting_rules, installed_halting_units,
        installed_step_losses, exit_rules, trackers,
    ):  # fmt: skip
        lookup.cache_clear()
