"""Labels of a run in experiment trackers: name, group, kind of job, tags, and facts beside the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adadepth.config import ExperimentConfig, Task
from adadepth.runs.directory import RECORD, read_record

_MAX_TAG = 64  # characters that W&B accepts
# Overrides that say where a run is written or computed, not what it is.
_UNTAGGED = ("resume", "output_dir", "logger", "runtime", "hydra")


@dataclass(frozen=True)
class RunLabels:
    """Labels of a run in a tracker.

    Attributes:
        name: Name of the run: its directory, with that of the enclosing run for a part of a search.
        group: Name of the sweep, of the run of several seeds or of the search to which the run belongs, or None.
        job_type: Kind of job, such as `train`, `evaluate`, `search`, `retrain` or `baseline`.
        tags: Tags: those of the settings, the name of the experiment, and the overrides of the command.
        facts: Facts beside the settings: overrides, sweep and parameter counts.
    """

    name: str
    group: str | None
    job_type: str
    tags: list[str]
    facts: dict[str, Any]


def describe_run(config: ExperimentConfig, directory: Path) -> RunLabels:
    """Return the labels of a run from its settings and its record.

    Args:
        config: Configuration of the run.
        directory: Folder of the run, with its record.
    """
    record = read_record(directory)
    search = next((folder for folder in directory.parents[:2] if (folder / RECORD).is_file()), None)
    parts = (directory.name,) if search is None else directory.relative_to(search.parent).parts
    enclosing = record.get("owner") if search is None else search.name
    adaptive_run = None if config.rival_of is None else Path(config.rival_of).name  # beside its matched baseline
    overrides = record.get("overrides") or []
    tagged = [override for override in overrides if override.lstrip("+~").split("=")[0].split(".")[0] not in _UNTAGGED]
    tags = dict.fromkeys([*config.logger.tags, config.name, *tagged])
    facts = {name: record.get(name) for name in ("overrides", "sweep", "parameters", "trainable_parameters")}
    return RunLabels(
        name="/".join(part for part in parts if part != "retrained"),
        group=config.logger.group or record.get("sweep") or adaptive_run or enclosing,
        job_type=_name_job(config, parts),
        tags=[tag if len(tag) <= _MAX_TAG else f"{tag[: _MAX_TAG - 3]}..." for tag in tags],
        facts={name: value for name, value in facts.items() if value},
    )


def _name_job(config: ExperimentConfig, parts: tuple[str, ...]) -> str:
    if config.rival_of is not None:
        return "baseline"
    if len(parts) > 1:
        return "retrain" if "retrained" in parts else "evaluate"
    return "search" if config.task is Task.architecture_search else str(config.mode)
