"""Registry of experiment trackers (e.g. TensorBoard) for `logger.report_to`; each is imported on first use.

Installed packages add trackers through the entry point group `adadepth.loggers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from adadepth.config.plugins import Importer, find_wrong_path, load_plugins, replace_paths

if TYPE_CHECKING:
    from adadepth.training.trackers.base import Tracker

GROUP = "adadepth.loggers"


@dataclass(frozen=True)
class TrackerKind:
    """Entry of the registry: where a tracker's class is, and what must be installed.

    Attributes:
        place: Importer of the tracker's class; see `adadepth.training.trackers.base.Tracker`.
        library: Name of the Python module that the tracker needs.
        needs: Requirement to install with pip if the library is missing.
        keeps_files: Whether the tracker can store reports and models.
    """

    place: Importer[type[Tracker]]
    library: str
    needs: str
    keeps_files: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether the library of the tracker is installed."""
        return find_spec(self.library) is not None


def _import_wandb() -> type[Tracker]:
    from adadepth.training.trackers.wandb import WandbTracker

    return WandbTracker


def _import_tensorboard() -> type[Tracker]:
    from adadepth.training.trackers.tensorboard import TensorBoardTracker

    return TensorBoardTracker


_TRACKERS: Mapping[str, TrackerKind] = {
    "wandb": TrackerKind(_import_wandb, "wandb", "wandb", keeps_files=True),
    "tensorboard": TrackerKind(_import_tensorboard, "tensorboard", "adadepth[tensorboard]"),
}


@cache
def trackers() -> Mapping[str, TrackerKind]:
    """Return all experiment trackers by name, from this package and from installed plug-ins.

    Raises:
        ConfigError: If a tracker of an installed package is broken, or its name is taken.
    """
    plugins = load_plugins(GROUP, "logger", _TRACKERS, _check_descriptor)
    return {**_TRACKERS, **{name: replace_paths(tracker, ["place"]) for name, tracker in plugins.items()}}


def _check_descriptor(descriptor: object, name: str) -> str | None:
    """Return what is wrong with a plug-in's tracker entry, or None if it is valid."""
    if not isinstance(descriptor, TrackerKind):
        return f"must be an adadepth.training.trackers.TrackerKind, not {type(descriptor).__name__}"
    return None if find_wrong_path(descriptor.place) is None else f"{descriptor.place!r} must be 'module:Class'"
