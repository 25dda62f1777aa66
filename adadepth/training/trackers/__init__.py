"""Trackers beside `metrics.jsonl` by their name in `logger.report_to`; none is imported here.

Installed packages add trackers by the entry point group `adadepth.loggers`.
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
    """Descriptor of a tracker.

    Attributes:
        place: Class of the tracker, `module:name`; see `adadepth.training.trackers.base.Tracker`.
        library: Module that it needs.
        needs: Requirement that pip installs where the library is missing.
        keeps_files: Whether it stores reports and models.
    """

    place: str
    library: str
    needs: str
    keeps_files: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether its library is installed."""
        return find_spec(self.library) is not None


_TRACKERS: Mapping[str, TrackerKind] = {
    "wandb": TrackerKind(f"{_HERE}.wandb:WandbTracker", "wandb", "wandb", keeps_files=True),
    "tensorboard": TrackerKind(f"{_HERE}.tensorboard:TensorBoardTracker", "tensorboard", "adadepth[tensorboard]"),
}


@cache
def trackers() -> Mapping[str, TrackerKind]:
    """Return all trackers by name: those of this package and of installed packages.

    Raises:
        ConfigError: If a tracker of an installed package is broken, or its name is taken.
    """
    return {**_TRACKERS, **load_plugins(GROUP, "logger", _TRACKERS, _check_descriptor)}


def _check_descriptor(descriptor: object, name: str) -> str | None:
    """Describe why an object is no descriptor of a tracker; None if it is one."""
    if not isinstance(descriptor, TrackerKind):
        return f"must be an adadepth.training.trackers.TrackerKind, not {type(descriptor).__name__}"
    return None if descriptor.place.count(":") == 1 else f"{descriptor.place!r} must be 'module:Class'"
