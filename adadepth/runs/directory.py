"""Run directories: creation, the record ``run.json``, the settings ``config.yaml``, and look-up of earlier runs.

Only the main process writes to run directories; the other processes receive the path from it.
"""

import dataclasses
import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from adadepth.config import OPTIONAL_GROUPS, ExperimentConfig
from adadepth.config.declaration import get_field_specs, select_notable_settings
from adadepth.config.env_redaction import redact_env_values, redact_record, with_references
from adadepth.config.experiment import Schedule
from adadepth.config.fingerprint import hash_result_settings, select_result_settings
from adadepth.config.kinds import list_dataset_schemas
from adadepth.errors import CheckpointError, nearest
from adadepth.models.registry import families, family
from adadepth.report.file_types import REPORTING, RunRecordFields
from adadepth.runs.commands import format_command, get_choices, list_overrides
from adadepth.runs.lock import lock_directory
from adadepth.runtime.demos import is_demo, resolve_demo
from adadepth.runtime.distributed import get_world_size
from adadepth.runtime.failures import attach_run
from adadepth.runtime.files import (
    DiskFullError,
    convert_full_disk_errors,
    refuse_links,
    remove_temporary_files,
    write_atomic,
)
from adadepth.runtime.hardware import collect_hardware
from adadepth.runtime.json_files import parse_json, read_regular_file
from adadepth.runtime.launchers import launches, list_restartable_launches

RECORD, CONFIG_FILE = "run.json", "config.yaml"
FINISHED = "finished"
MODEL = "model"  # folder of a run's best weights
CHECKPOINTS, _EVALUATIONS = "checkpoints", "evaluations"  # folders of a run
_SECOND = len("2026-11-22_14-15-16")  # of the name of a run
RIVAL_SUFFIX = "_rival"  # of the folder in which the matched baselines of a configuration are trained
_PACKAGES = ("adadepth", "torch", "transformers", "accelerate", "datasets", "tokenizers", "hydra-core", "omegaconf")
SWEEP = "ADADEPTH_SWEEP"  # environment variable with the name of a run's sweep
# Settings of which one must change to resume a finished run.
_LIMITS = ("max_steps", "num_train_epochs", "time_budget_minutes", "early_stopping_patience")
CONTINUE = (*(f"trainer.{key}" for key in _LIMITS), "search.stages", "search.shapes")
_LENGTH = ("trainer.max_steps", "trainer.num_train_epochs")
# Settings that a resumed run may change: its end, evaluations and saves, and shapes of architecture comparisons.
_INTERVALS = ("early_stopping_threshold", "eval_strategy", "eval_steps", "eval_on_start", "save_strategy", "save_steps")
_CHANGEABLE = frozenset({*CONTINUE, *(f"trainer.{key}" for key in _INTERVALS)})
# Settings of a step's examples that another world size may change, and sharding, which may always change.
_BATCH, _MICRO = "trainer.per_device_train_batch_size", "trainer.gradient_accumulation_steps"
_SHARDING = frozenset({"trainer.fsdp", "trainer.fsdp_config"})

# Fields of a record that this program reads again, and that never contain the value of a setting.
_UNREDACTED = frozenset({"status", "mode", "dataset_schema", "command"})


@dataclass
class Run:
    """Run in progress: its directory, and the record that is written to ``run.json``."""

    directory: Path
    is_main: bool = True
    record: dict[str, Any] = field(default_factory=dict)

    def update(self, **fields: Any) -> None:
        """Set fields of the run's record, and write ``run.json``."""
        self.record |= {name: value if name in _UNREDACTED else redact_record(value) for name, value in fields.items()}
        if self.is_main:
            write_jsonable(self.directory / RECORD, self.record)


@contextmanager
def open_run(
    config: ExperimentConfig,
    directory: Path,
    is_main: bool = True,
    report: Callable[[], None] | None = None,
    *,
    reports_errors: bool = False,
) -> Iterator[Run]:
    """Lock a run directory and record the status of the run: running, then reporting and finished.

    A run that ends with an error is failed or interrupted, but one that ends while its report is written stays
    reporting. The status is finished only when all files of the run are written.

    Fields that an earlier start recorded stay until they are recorded again. Half-written files of a killed process are
    removed. A status that ``run.update(status=...)`` has set is kept. If a new run cannot be recorded, its directory is
    removed.

    Args:
        config: Experiment.
        directory: Run directory.
        is_main: Whether this process writes the record and the report.
        report: Function that writes the report from the files of the run.
        reports_errors: Whether the report is also written after an error.

    Raises:
        CheckpointError: If another process uses the directory, or if the directory contains a link.
        DiskFullError: If the disk is full; the message names the directory.
    """
    if not is_main:
        yield Run(directory, is_main=False)
        return
    refuse_links(directory)
    with _remove_without_record(directory), convert_full_disk_errors(directory), lock_directory(directory):
        run, earlier, begun = Run(directory), read_record(directory), time.monotonic()
        remove_temporary_files(directory, _EVALUATIONS)
        write_atomic(directory / CONFIG_FILE, OmegaConf.to_yaml(OmegaConf.create(get_plain_settings(config))))
        run.update(**earlier | _describe_run(config, earlier))

        def close(status: str, **fields: Any) -> None:
            seconds = earlier.get("wall_time_s", 0.0) + time.monotonic() - begun
            status = status if run.record["status"] == "running" else run.record["status"]
            run.update(status=status, wall_time_s=round(seconds, 3), **fields)

        is_complete = False
        try:
            with convert_full_disk_errors(directory):
                yield run
                is_complete = True
                close(REPORTING)
                if report is not None:
                    report()
        except BaseException as error:
            attach_run(error, directory)
            is_interrupted = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
            with suppress(OSError, CheckpointError):  # a full disk must not hide the first error
                line = redact_env_values(f"{type(error).__name__}: {error}")
                close("interrupted" if is_interrupted else "failed", error=line)
            if report is not None and reports_errors and not is_complete:
                with suppress(OSError):
                    report()
            raise
        if run.record["status"] == REPORTING:
            run.update(status=FINISHED)


_OWNER: ContextVar[Path | None] = ContextVar("owner", default=None)


@contextmanager
def own_runs(directory: Path) -> Iterator[None]:
    """Record every run that starts within the `with` block as a part of another run, which is resumed as a whole.

    Args:
        directory: Directory of the other run. If this run is itself a part, the outer run stays the owner.
    """
    token = _OWNER.set(_OWNER.get() or directory)
    try:
        yield
    finally:
        _OWNER.reset(token)


def get_owner() -> Path | None:
    """Return the directory of the run that current runs are a part of, or None; see `own_runs`."""
    return _OWNER.get()


@contextmanager
def _remove_without_record(directory: Path) -> Iterator[None]:
    """Delete a new run directory if the disk is too full to write its record."""
    try:
        yield
    except DiskFullError:
        if not (directory / RECORD).is_file():
            shutil.rmtree(directory, ignore_errors=True)
        raise


def run_directory(config: ExperimentConfig) -> Path:
    """Return the directory of the run that a configuration starts or resumes.

    It is the directory of the run to resume, after a check of its settings, or a new empty directory.
    """
    if config.resume is None:
        return _new_directory(config)
    directory = resolve_run(config.resume, config, needs=CHECKPOINTS)
    if changes := _find_changed_settings(config, directory):
        raise CheckpointError(f"resume={directory}: these settings of the run differ: {'; '.join(changes)}")
    return directory


def find_run_of_launch(config: ExperimentConfig) -> Path | None:
    """Return the newest run with these settings that this launcher job started before a restart, or None."""
    names, expected_hash = set(list_restartable_launches()), hash_result_settings(config)
    if config.resume is not None or not names:
        return None
    for run in reversed(_list_runs(Path(config.output_dir) / config.name, CHECKPOINTS)):
        record = read_record(run)
        is_of_launch = names.intersection(record.get("launches", ())) and record.get("result_hash") == expected_hash
        if is_of_launch and _has_trained(run):
            return run
    return None


def resolve_run(value: str, config: ExperimentConfig, needs: str = RECORD) -> Path:
    """Find the run directory that ``resume=``, ``run=`` or ``checkpoint=`` names, e.g. `latest`.

    Args:
        value: Run directory, or ``latest`` for the newest run of this configuration that has ``needs``. A run that
            consists of others has no checkpoints of its own, but can be resumed. A newer unfinished run that trains
            matched baselines of this configuration is resumed first.
        config: Configuration of the command.
        needs: File or folder that the run must contain. Only training runs have `CHECKPOINTS` and `MODEL`; evaluations
            also have records.

    Raises:
        CheckpointError: If there is no such run; the message names candidates.
    """
    directory = Path(value)
    if value != "latest" and os.path.isfile(directory / RECORD):
        if not (directory / needs).exists() and not (needs == CHECKPOINTS and has_parts(directory)):
            hint = _name_newest_checkpoint(directory) if needs == MODEL else ""
            raise CheckpointError(f"{value}: this run has no {needs}{hint}")
        return directory
    parent = Path(config.output_dir) / config.name
    candidates = _list_runs(parent, needs) if needs in (CHECKPOINTS, MODEL) else _list_runs_and_evaluations(parent)
    if value == "latest":
        trained = (run for run in reversed(candidates) if needs not in (CHECKPOINTS, MODEL) or _has_trained(run))
        newest, rival = next(trained, None), _find_unfinished_rival(parent) if needs == CHECKPOINTS else None
        if rival is not None and (newest is None or rival.name[:_SECOND] >= newest.name[:_SECOND]):
            return rival
        if newest is None:
            raise CheckpointError(f"latest: no run with {needs} found in {parent}")
        return find_owner(newest) or newest if needs == CHECKPOINTS else newest
    names = [str(path) for path in candidates]
    newest_runs = f"; newest runs of {config.name}: {', '.join(names[-3:])}" if names else ""
    raise CheckpointError(f"{value}: not a run directory (no {RECORD}){nearest(value, names)}{newest_runs}")


def _name_newest_checkpoint(run: Path) -> str:
    """Return the end of a message that names the newest complete checkpoint of a run, or an empty text."""
    from adadepth.runs.checkpoints import list_complete_checkpoints  # imports transformers

    newest = list_complete_checkpoints(run / CHECKPOINTS)[-1:]
    return "".join(f"; its newest checkpoint is checkpoint={checkpoint}" for checkpoint in newest)


def has_parts(run: Path) -> bool:
    """Return whether a run consists of other runs, which are next to it: of several seeds, or matched baselines."""
    record = read_record(run)
    return record.get("seeds", 1) > 1 or record.get("trains_baselines", False)


def find_owner(run: Path) -> Path | None:
    """Return the run that a run is a part of, or None."""
    name = read_record(run).get("owner")
    owner = None if name is None else run.parent / Path(name).name  # a run of another folder is no owner
    return owner if owner is not None and os.path.isfile(owner / RECORD) else None


def _list_runs(parent: Path, needs: str) -> list[Path]:
    """Return the runs in a folder that contain the folder ``needs``, oldest first."""
    return sorted(path.parent for path in parent.glob(f"*/{RECORD}") if (path.parent / needs).is_dir())


def _find_unfinished_rival(parent: Path) -> Path | None:
    """Return the newest unfinished run that trains matched baselines of the runs in a folder, or None."""
    runs = _list_runs(parent.with_name(parent.name + RIVAL_SUFFIX), ".")
    records = [(run, read_record(run)) for run in reversed(runs)]
    unfinished = (run for run, record in records if record.get("status") != FINISHED)
    return next((run for run in unfinished if has_parts(run)), None)


def _has_trained(run: Path) -> bool:
    return read_record(run).get("mode", "train") == "train"


def _list_runs_and_evaluations(parent: Path) -> list[Path]:
    """Return the runs in a folder and the evaluations inside them, oldest first."""
    records = [*parent.glob(f"*/{RECORD}"), *parent.glob(f"*/{_EVALUATIONS}/*/{RECORD}")]
    # An evaluation that started in the second of its run is newer.
    return sorted((path.parent for path in records), key=lambda run: (run.name[:_SECOND], len(run.parts), run.name))


def model_path(config: ExperimentConfig) -> str:
    """Find the model folder that `checkpoint` names, which may be a run, a checkpoint or a model.

    It is the best model of a run or of a demo, another folder, or a hub id.

    Raises:
        CheckpointError: If there is no such run or demo, or if the value is not a folder but resembles the name of a
            run.
    """
    value = str(config.checkpoint)
    if (demo := resolve_demo("checkpoint", value)) is not None:
        return str(demo / MODEL)
    if value == "latest" or os.path.isfile(Path(value) / RECORD):
        return str(resolve_run(value, config, needs=MODEL) / MODEL)
    if not os.path.exists(value):
        runs = _list_runs(Path(config.output_dir) / config.name, MODEL)
        if hint := nearest(value, ["latest", *map(str, runs)]):
            raise CheckpointError(f"checkpoint={value}: run or folder not found{hint}")
    return value


def run_of_checkpoint(config: ExperimentConfig) -> Path | None:
    """Find the directory of the run that wrote `checkpoint`.

    The result is None if no run wrote it or if it does not exist.
    """
    if config.checkpoint is None:
        return None
    try:
        model = Path(model_path(config))
    except CheckpointError:
        return None  # the task reports it when it loads the model
    folders = (model, *model.parents[:2]) if os.path.exists(model) else ()  # RUN/model, RUN/checkpoints/checkpoint-100
    return next(
        (folder for folder in folders if (folder / RECORD).is_file() and (folder / CONFIG_FILE).is_file()), None
    )


def read_record(directory: Path) -> dict[str, Any]:
    """Read the record ``run.json`` of a run; return an empty record if there is none.

    Raises:
        CheckpointError: If it is damaged.
    """
    path = directory / RECORD
    if not os.path.isfile(path):  # `Path.is_file` would raise an error for a name too long for the system
        return {}
    try:
        record: dict[str, Any] = parse_json(read_regular_file(path).decode("utf-8"), RunRecordFields)
    except ValueError as error:
        raise CheckpointError(f"{path}: is damaged and holds no record of a run ({error})") from error
    return record


def read_settings(directory: Path) -> Any:
    """Read the settings of a run from its ``config.yaml``.

    A setting of the model that is newer than the run gets the value with which the run was trained.

    Raises:
        CheckpointError: If the file is missing or damaged.
    """
    path = directory / CONFIG_FILE
    try:
        settings: Any = OmegaConf.load(path)
        if all(OmegaConf.is_dict(settings[group]) for group in ("model", "dataset", "trainer")) and settings.model.name:
            return _fill_later_settings(settings)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: is missing") from error
    except (OSError, ValueError, TypeError, YAMLError, OmegaConfBaseException):
        pass
    raise CheckpointError(f"{path}: is damaged and holds no settings of a run")


def _fill_later_settings(settings: Any) -> Any:
    """Fill in the settings that a file lacks, and whose default was another one when the file was written."""
    if (spec := families().get(settings.model.name)) is not None:
        for name, field in get_field_specs(spec.settings).items():
            if field.later and field.differs_on_hub and name not in settings.model:
                settings.model[name] = field.hub
    if settings.model.get("pretrained") and {"append_eos", "document_separator"} <= settings.dataset.keys():
        settings.dataset.setdefault("keep_newlines", False)
    return settings


def write_jsonable(path: Path, value: Any) -> None:
    """Write a value as indented JSON atomically; see ``jsonable``."""
    write_atomic(path, json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n")


def jsonable(value: Any) -> Any:
    """Convert a value to strict JSON, with ``"nan"``, ``"inf"`` or ``"-inf"`` for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(float(value))
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _new_directory(config: ExperimentConfig) -> Path:
    """Create a run directory named ``<date>_<time>_<hash>-<fraction>``, and return its path.

    The fraction of the second is written in hexadecimal digits.

    The names of jobs with equal settings sort by their start, and no two jobs share a directory.
    """
    while True:
        now = datetime.now()
        name = f"{now:%Y-%m-%d_%H-%M-%S}_{hash_result_settings(config)}-{now.microsecond * 16**4 // 10**6:04x}"
        directory = _find_parent(config) / name
        try:
            directory.mkdir(parents=True)
        except OSError as error:
            if not directory.is_dir():  # else another process created it at the same moment
                raise CheckpointError(
                    f"output_dir={config.output_dir}: cannot make {directory}: {error.strerror}"
                ) from error
        else:
            return directory


def _find_parent(config: ExperimentConfig) -> Path:
    """Return the parent folder of a new run.

    It is ``<output_dir>/<name>``, or, for an evaluation, a folder inside the evaluated run.

    Nothing is written into a run outside ``output_dir``, which may belong to another user, or into a demo of the
    package.
    """
    run = run_of_checkpoint(config)
    is_within = run is not None and run.resolve().is_relative_to(Path(config.output_dir).resolve())
    if run is not None and is_within and not is_demo(run):
        refuse_links(run)
        return run / _EVALUATIONS
    return Path(config.output_dir) / config.name


def get_plain_settings(config: ExperimentConfig) -> dict[str, Any]:
    """Convert the settings of a run to plain values, for ``config.yaml`` and for trackers.

    Groups that the model family never reads are omitted if they have their default values.
    """
    read, values = family(config.model.name).groups, dataclasses.asdict(config)
    unread = {name for name, group in OPTIONAL_GROUPS.items() if name not in read and getattr(config, name) == group()}
    settings: Any = with_references(
        {name: _to_yaml_values(value) for name, value in values.items() if name not in unread}
    )
    return settings


def _to_yaml_values(value: Any) -> Any:
    """Convert settings to YAML values, with enumeration members as their names."""
    if isinstance(value, Mapping):
        return {_to_yaml_values(name): _to_yaml_values(child) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [_to_yaml_values(child) for child in value]
    return value.name if isinstance(value, Enum) else value


def _find_changed_settings(config: ExperimentConfig, directory: Path) -> list[str]:
    """Return a line for every changed setting that a resumed run must not change any more."""
    stored: Any = OmegaConf.to_container(read_settings(directory))
    earlier, now = (
        flat(select_result_settings(with_references(settings))) for settings in (stored, dataclasses.asdict(config))
    )
    defaults = {name: type(getattr(config, name))() for name in ("model", "dataset", "tokenizer", "trainer")}
    earlier = flat(select_result_settings(dataclasses.asdict(dataclasses.replace(config, **defaults)))) | earlier
    schedule, processes = find_length_dependence(config), read_run_world_size(directory)
    free = _SHARDING | ({_BATCH, _MICRO} if processes != get_world_size() else set())
    if has_parts(directory):  # its finished runs have the other settings
        free |= {"seeds"} if now["seeds"] >= earlier.get("seeds", 1) else set()
    else:
        free |= _CHANGEABLE if schedule is None else _CHANGEABLE.difference(_LENGTH)
    changed = [key for key in now if key not in free and earlier.get(key) != now[key]]
    reasons = dict.fromkeys(_LENGTH, f" ({schedule} depends on the number of optimiser steps)")
    lines = [f"{key} was {earlier.get(key)} and now is {now[key]}{reasons.get(key, '')}" for key in changed]
    return [*lines, *_check_step_size(earlier, now, processes)]


def read_run_world_size(directory: Path) -> int:
    """Return the world size of a run's last start, or the current world size if its record lacks it."""
    processes: int = read_record(directory).get("hardware", {}).get("processes", get_world_size())
    return processes


def _check_step_size(earlier: Mapping[str, Any], now: Mapping[str, Any], old_processes: int) -> Iterator[str]:
    """Yield an error line if the new world size changes the examples per optimiser step.

    The line suggests settings that keep the number.
    """
    processes = get_world_size()
    before, after = earlier[_BATCH] * earlier[_MICRO] * old_processes, now[_BATCH] * now[_MICRO] * processes
    if old_processes == processes or before == after:
        return
    line = f"{_format_processes(old_processes)} had {before} examples per optimiser step, "
    if before % processes:
        yield f"{line}which {_format_processes(processes)} cannot divide evenly"
    else:
        hint = f"{_BATCH}={before // processes} {_MICRO}=1 keeps the number"
        yield f"{line}{_format_processes(processes)} would have {after}; {hint}"


def _format_processes(number: int) -> str:
    return f"{number} process" + ("es" if number > 1 else "")


def find_length_dependence(config: ExperimentConfig) -> str | None:
    """Return a setting through which early optimiser steps depend on the length of training, or None."""
    if config.trainer.schedule not in (Schedule.constant, Schedule.plateau):
        return f"trainer.schedule={config.trainer.schedule}"
    if 0 < config.trainer.warmup_steps < 1:
        return f"trainer.warmup_steps={config.trainer.warmup_steps}"
    if config.budget.target is not None:
        return f"budget.target={config.budget.target}"
    return "search" if family(config.model.name).searches(config.model) else None


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries, with keys joined by dots."""
    if not isinstance(node, dict) or not node:
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in flat(child, f"{prefix}{name}.").items()}


def _describe_run(config: ExperimentConfig, earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first content of ``run.json`` when a run starts.

    A resumed run keeps the time of its first start.
    """
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return {
        "status": "running",
        "config_name": config.name,
        "mode": str(config.mode),
        "seed": config.seed,
        "seeds": config.seeds,
        "owner": owner.name if (owner := get_owner()) is not None else earlier.get("owner"),
        "result_hash": hash_result_settings(config),
        "dataset_schema": next(
            name for name, schema in list_dataset_schemas().items() if schema is type(config.dataset)
        ),
        "settings": _select_settings(config),
        "command": format_command(),
        "overrides": earlier.get("overrides") or list_overrides(),
        "chosen": get_choices() or earlier.get("chosen", []),
        "launches": launches(),
        "started": earlier.get("started", now),
        "resumed": now if earlier else None,
        "resumed_from": config.resume,
        "sweep": os.environ.get(SWEEP, earlier.get("sweep")),
        "wall_time_s": earlier.get("wall_time_s", 0.0),
        **collect_environment(),
        "final_metrics": None,
        "best_checkpoint": earlier.get("best_checkpoint"),
        "trackers": earlier.get("trackers", {}),
        "error": None,
    }


def collect_environment() -> dict[str, Any]:
    """Return the environment of a run for its record: package versions, git commit and hardware."""
    return {
        "versions": _collect_versions(),
        "git_commit": _find_git_commit(),
        "hardware": collect_hardware(),
    }


def _select_settings(config: ExperimentConfig) -> dict[str, Any]:
    """Return the settings of every group that determine weight shapes or differ from their defaults."""
    groups = {name: select_notable_settings(getattr(config, name)) for name in ("model", *OPTIONAL_GROUPS)}
    return {name: with_references(group, name) for name, group in groups.items() if group}


def _collect_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


@cache
def _find_git_commit() -> str | None:
    """Return the git commit of the project, or None if the project is not a git clone.

    The suffix ``+changes`` marks files that differ from the commit.

    The result of the first call is cached, because a process keeps the code that it has imported.
    """

    def git(*arguments: str) -> str:
        # Without locks: a run that is killed here would leave one, which blocks the user's commits.
        command = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
