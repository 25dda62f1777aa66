"""Registry of experiment trackers (e.g. TensorBoard) for `logger.report_to`; each is imported on first use.

Installed packages add trackers through the entry point group `adadepth.loggers`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from adadepth.config.plugins import load_plugins

GROUP = "adadepth.loggers"
_HERE = "adadepth.training.trackers"


@dataclass(frozen=True)
class TrackerKind:
    """Entry of the registry: where a tracker's class is, and what must be installed.

    Attributes:
        place: Import path of the tracker's class, `module:name`; see `adadepth.training.trackers.base.Tracker`.
        library: Name of the Python module that the tracker needs.
        needs: Requirement to install with pip if the library is missing.
        keeps_files: Whether the tracker can store reports and models.
    """

    place: str
    library: str
    needs: str
    keeps_files: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether the library of the tracker is installed."""
        return find_spec(self.library) is not None


_TRACKERS: Mapping[str, TrackerKind] = {
    "wandb": TrackerKind(f"{_HERE}.wandb:WandbTracker", "wandb", "wandb", keeps_files=True),
    "tensorboard": TrackerKind(f"{_HERE}.tensorboard:TensorBoardTracker", "tensorboard", "adadepth[tensorboard]"),
}


@cache
def trackers() -> Mapping[str, TrackerKind]:
    """Return all experiment trackers by name, from this package and from installed plug-ins.

    Raises:
        ConfigError: If a tracker of an installed package is broken, or its name is taken.
    """
    return {**_TRACKERS, **load_plugins(GROUP, "logger", _TRACKERS, _check_descriptor)}


def _check_descriptor(descriptor: object, name: str) -> str | None:
    """Return what is wrong with a plug-in's tracker entry, or None if it is valid."""
    if not isinstance(descriptor, TrackerKind):
        return f"must be an adadepth.training.trackers.TrackerKind, not {type(descriptor).__name__}"
    return None if descriptor.place.count(":") == 1 else f"{descriptor.place!r} must be 'module:Class'"
