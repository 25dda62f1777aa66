"""Trackers beside `metrics.jsonl`, one file each, by the name that `logger.report_to` says; none is imported here.

Further ones join by the entry points group `adadepth.loggers`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from adadepth.settings.plugins import installed

GROUP = "adadepth.loggers"
_HERE = "adadepth.training.trackers"


@dataclass(frozen=True)
class TrackerKind:
    """A tracker that can be asked for.

    Attributes:
        place: Where its class is, `module:name`; see `adadepth.training.trackers.base.Tracker`.
        library: The module that it needs.
        needs: What to install where that is missing, in pip's words.
        keeps_files: Whether it keeps reports and models.
    """

    place: str
    library: str
    needs: str
    keeps_files: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether its library is there."""
        return find_spec(self.library) is not None


_TRACKERS: Mapping[str, TrackerKind] = {
    "wandb": TrackerKind(f"{_HERE}.wandb:WandbTracker", "wandb", "wandb", keeps_files=True),
    "tensorboard": TrackerKind(f"{_HERE}.tensorboard:TensorBoardTracker", "tensorboard", "adadepth[tensorboard]"),
}


@cache
def trackers() -> Mapping[str, TrackerKind]:
    """Every tracker by name: this package's, and those of installed packages.

    Raises:
        ConfigError: If one of an installed package is broken, or has a name that is taken.
    """
    return {**_TRACKERS, **installed(GROUP, "logger", _TRACKERS, _wrong)}


def _wrong(descriptor: object, name: str) -> str | None:
    """What keeps an object from being the descriptor of a tracker."""
    if not isinstance(descriptor, TrackerKind):
        return f"must be an adadepth.training.trackers.TrackerKind, not {type(descriptor).__name__}"
    return None if descriptor.place.count(":") == 1 else f"{descriptor.place!r} must be 'module:Class'"
