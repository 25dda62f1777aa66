"""Trackers."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adadepth.declaration import TEXTS, setting

TrackerMode = StrEnum("TrackerMode", ["offline", "online", "disabled"])
Kept = StrEnum("Kept", ["report", "model"])


@dataclass
class LoggerConfig:
    """Where metrics go besides ``metrics.jsonl``, which is always written."""

    report_to: Any = setting(None, "trackers: a name or a list; docs/tracking.md tells them", TEXTS)
    project: str = setting("adadepth", "of the tracker")
    entity: str | None = setting(None, "W&B team or user, Comet workspace")
    group: str | None = setting(None, "of runs; None: the experiment's name")
    tags: list[str] = setting([], "of the run")
    mode: TrackerMode = setting(TrackerMode.offline, "W&B and Comet; offline runs are uploaded later")
    artifacts: list[Kept] = setting([], "what a tracker keeps at the end of a run")

    def __post_init__(self) -> None:
        self.report_to = _names(self.report_to)


def _names(given: Any) -> list[str]:
    """Names that were given as one, as a list, or, by several options of a group, as a mapping of each to true."""
    if isinstance(given, dict):
        given = [name for name, is_wanted in given.items() if is_wanted]
    return [name for name in (given if isinstance(given, list) else [given]) if name not in (None, "none")]
