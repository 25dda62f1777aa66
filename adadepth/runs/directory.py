"""A run's folder: its name, its record ``run.json``, its lock, atomic writes, and finding an earlier run.

Only the main process calls what writes here; the others receive the folder's path from it.
"""

import dataclasses
import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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

from adadepth.errors import CheckpointError, nearest
from adadepth.families.registry import family
from adadepth.report.file_types import RunRecordFields
from adadepth.runs.lock import locked
from adadepth.runs.program import noted_choices, own_command
from adadepth.settings import OPTIONAL_GROUPS, ExperimentConfig
from adadepth.settings.declaration import telling
from adadepth.settings.experiment import Schedule
from adadepth.settings.fingerprint import result_hash, result_settings
from adadepth.settings.interpolations import as_written, told_within, unresolved
from adadepth.settings.kinds import dataset_schemas
from adadepth.system.demos import is_demo, resolve_demo
from adadepth.system.failures import note_run
from adadepth.system.files import DiskFullError, refuse_links, remove_leftovers, write_atomic, writing
from adadepth.system.hardware import collect_hardware
from adadepth.system.json_files import parse_json, read_regular
from adadepth.system.launchers import launches, repeated_launches
from adadepth.system.processes import number_of_processes

RECORD, CONFIG_FILE = "run.json", "config.yaml"
MODEL = "model"  # the folder of a run that holds its best weights
CHECKPOINTS, _EVALUATIONS = "checkpoints", "evaluations"  # those of a run
_PACKAGES = ("adadepth", "torch", "transformers", "accelerate", "datasets", "tokenizers", "hydra-core", "omegaconf")
SWEEP = "ADADEPTH_SWEEP"  # environment variable that names the sweep which a run is a part of
# By what a run goes on that was at its end.
_UNTIL = ("max_steps", "num_train_epochs", "time_budget_minutes", "early_stopping_patience")
CONTINUE = (*(f"trainer.{key}" for key in _UNTIL), "search.stages", "search.shapes")
_LENGTH = ("trainer.max_steps", "trainer.num_train_epochs")
# What a continued run may change: when it ends, evaluates and saves, and at which shapes architectures are compared.
_WHEN = ("early_stopping_threshold", "eval_strategy", "eval_steps", "eval_on_start", "save_strategy", "save_steps")
_MAY_CHANGE = frozenset({*CONTINUE, *(f"trainer.{key}" for key in _WHEN)})
# How another number of processes shares the examples of a step, and how any number shares the model.
_BATCH, _MICRO = "trainer.per_device_train_batch_size", "trainer.gradient_accumulation_steps"
_SHARDING = frozenset({"trainer.fsdp", "trainer.fsdp_config"})


@dataclass
class Run:
    """An open run: its folder and the record that is written to ``run.json``."""

    directory: Path
    is_main: bool = True
    record: dict[str, Any] = field(default_factory=dict)

    def update(self, **fields: Any) -> None:
        """Set fields of the record and write it, e.g. ``update(final_metrics=..., best_checkpoint=...)``."""
        self.record |= as_written(fields)
        if self.is_main:
            write_jsonable(self.directory / RECORD, self.record)


@contextmanager
def open_run(config: ExperimentConfig, directory: Path, is_main: bool = True) -> Iterator[Run]:
    """Lock the folder and keep its record while a task runs: running, then finished, failed or interrupted.

    What an earlier start has recorded stays until it is recorded anew; what a kill left half-written is removed.
    A status set by ``run.update(status=...)`` is kept. Of a new run that cannot even be recorded no folder stays.

    Raises:
        CheckpointError: If a live run uses the folder, or a link in it leads elsewhere.
        DiskFullError: Naming the folder.
    """
    if not is_main:
        yield Run(directory, is_main=False)
        return
    refuse_links(directory)
    with _gone_if_not_begun(directory), writing(directory), locked(directory):
        run, earlier, begun = Run(directory), read_record(directory), time.monotonic()
        remove_leftovers(directory, _EVALUATIONS)
        write_atomic(directory / CONFIG_FILE, OmegaConf.to_yaml(OmegaConf.create(settings_of(config))))
        run.update(**earlier | _description(config, earlier))

        def close(status: str, **fields: Any) -> None:
            seconds = earlier.get("wall_time_s", 0.0) + time.monotonic() - begun
            status = status if run.record["status"] == "running" else run.record["status"]
            run.update(status=status, wall_time_s=round(seconds, 3), **fields)

        try:
            with writing(directory):
                yield run
        except BaseException as error:
            note_run(error, directory)
            interrupted = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
            with suppress(OSError, CheckpointError):  # a full disk must not hide the first error
                how = "interrupted" if interrupted else "failed"
                close(how, error=told_within(f"{type(error).__name__}: {error}"))
            raise
        close("finished")


@contextmanager
def _gone_if_not_begun(directory: Path) -> Iterator[None]:
    """Remove the folder of a run for whose record there was no room."""
    try:
        yield
    except DiskFullError:
        if not (directory / RECORD).is_file():
            shutil.rmtree(directory, ignore_errors=True)
        raise


def run_directory(config: ExperimentConfig) -> Path:
    """Return the folder of this run: the one to resume, after checking its settings, or a new empty one."""
    if config.resume is None:
        return _new_directory(config)
    directory = resolve_run(config.resume, config, needs=CHECKPOINTS)
    if changes := _changed_settings(config, directory):
        raise CheckpointError(f"resume={directory}: it ran with other settings: {'; '.join(changes)}")
    return directory


def begun_before(config: ExperimentConfig) -> Path | None:
    """The newest run of these settings that an earlier start of this launch has begun; None: this is the first."""
    names, wanted = set(repeated_launches()), result_hash(config)
    if config.resume is not None or not names:
        return None
    for run in reversed(_runs_with(Path(config.output_dir) / config.name, CHECKPOINTS)):
        record = read_record(run)
        if names.intersection(record.get("launches", ())) and record.get("result_hash") == wanted and _has_trained(run):
            return run
    return None


def resolve_run(value: str, config: ExperimentConfig, needs: str = RECORD) -> Path:
    """Find the run folder that ``resume=``, ``run=`` or ``checkpoint=`` names.

    ``latest`` is the newest run of this configuration that has the file or folder ``needs``: one that trained where
    that is its weights, else an evaluation, too. Raises ``CheckpointError`` naming the candidates.
    """
    parent = Path(config.output_dir) / config.name
    candidates = _runs_with(parent, needs) if needs in (CHECKPOINTS, MODEL) else _runs_and_evaluations(parent)
    if value == "latest":
        trained = (run for run in reversed(candidates) if needs not in (CHECKPOINTS, MODEL) or _has_trained(run))
        if (newest := next(trained, None)) is None:
            raise CheckpointError(f"latest: no run with {needs} in {parent}")
        return newest
    directory = Path(value)
    if not os.path.isfile(directory / RECORD):
        names = [str(path) for path in candidates]
        known = f"; newest runs of {config.name}: {', '.join(names[-3:])}" if names else ""
        raise CheckpointError(f"{value}: not a run directory (it has no {RECORD}){nearest(value, names)}{known}")
    if not (directory / needs).exists():
        raise CheckpointError(f"{value}: this run has no {needs}")
    return directory


def _runs_with(parent: Path, needs: str) -> list[Path]:
    """The runs in a folder that have the folder ``needs``, oldest first."""
    return sorted(path.parent for path in parent.glob(f"*/{RECORD}") if (path.parent / needs).is_dir())


def _has_trained(run: Path) -> bool:
    return read_record(run).get("mode", "train") == "train"


def _runs_and_evaluations(parent: Path) -> list[Path]:
    """The runs in a folder and the evaluations in them, oldest first."""
    records = [*parent.glob(f"*/{RECORD}"), *parent.glob(f"*/{_EVALUATIONS}/*/{RECORD}")]
    begun = len("2026-11-22_14-15-16")  # of a name; an evaluation that began in the second of its run came later
    return sorted((path.parent for path in records), key=lambda run: (run.name[:begun], len(run.parts), run.name))


def model_path(config: ExperimentConfig) -> str:
    """What `checkpoint` names: a run or a demo (its best model), a checkpoint, any model folder, or a hub id.

    Raises:
        CheckpointError: There is no such run or demo, or what is nearly the name of a run is asked for, and no folder.
    """
    value = str(config.checkpoint)
    if (demo := resolve_demo("checkpoint", value)) is not None:
        return str(demo / MODEL)
    if value == "latest" or os.path.isfile(Path(value) / RECORD):
        return str(resolve_run(value, config, needs=MODEL) / MODEL)
    if not os.path.exists(value):
        runs = _runs_with(Path(config.output_dir) / config.name, MODEL)
        if meant := nearest(value, ["latest", *map(str, runs)]):
            raise CheckpointError(f"checkpoint={value}: no such run or folder{meant}")
    return value


def run_of_checkpoint(config: ExperimentConfig) -> Path | None:
    """The folder of the run that `checkpoint` is from; None: it is from no run, or there is none yet."""
    if config.checkpoint is None:
        return None
    try:
        model = Path(model_path(config))
    except CheckpointError:
        return None  # the task says it when it looks for the model
    folders = (model, *model.parents[:2]) if os.path.exists(model) else ()  # RUN/model, RUN/checkpoints/checkpoint-100
    return next(
        (folder for folder in folders if (folder / RECORD).is_file() and (folder / CONFIG_FILE).is_file()), None
    )


def read_record(directory: Path) -> dict[str, Any]:
    """Read ``run.json``, or return an empty record where there is none.

    Raises:
        CheckpointError: If it is damaged.
    """
    path = directory / RECORD
    if not os.path.isfile(path):  # where `Path.is_file` raises what a name too long for the system is, this says no
        return {}
    try:
        record: dict[str, Any] = parse_json(read_regular(path).decode("utf-8"), RunRecordFields)
    except ValueError as error:
        raise CheckpointError(f"{path}: is damaged, it holds no record of a run ({error})") from error
    return record


def read_settings(directory: Path) -> Any:
    """Read ``config.yaml``, the settings of a run, as Hydra wrote them.

    Raises:
        CheckpointError: If it is missing or damaged.
    """
    path = directory / CONFIG_FILE
    try:
        settings: Any = OmegaConf.load(path)
        if all(OmegaConf.is_dict(settings[group]) for group in ("model", "dataset", "trainer")) and settings.model.name:
            return settings
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: is missing") from error
    except (OSError, ValueError, TypeError, YAMLError, OmegaConfBaseException):
        pass
    raise CheckpointError(f"{path}: is damaged, it holds no settings of a run")


def write_jsonable(path: Path, value: Any) -> None:
    """Write readable JSON atomically; see ``jsonable``."""
    write_atomic(path, json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n")


def jsonable(value: Any) -> Any:
    """Return ``value`` as strict JSON can hold it: what is not finite becomes ``"nan"``, ``"inf"`` or ``"-inf"``."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(float(value))
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _new_directory(config: ExperimentConfig) -> Path:
    """Make ``<parent>/<date>_<time>_<hash>-<fraction>``, where the fraction is that of the second, in hexadecimals.

    Equal jobs are so in the order of their beginnings, and no two have one folder.
    """
    while True:
        now = datetime.now()
        name = f"{now:%Y-%m-%d_%H-%M-%S}_{result_hash(config)}-{now.microsecond * 16**4 // 10**6:04x}"
        directory = _parent(config) / name
        try:
            directory.mkdir(parents=True)
        except OSError as error:
            if not directory.is_dir():  # else another process of this very moment has it
                raise CheckpointError(
                    f"output_dir={config.output_dir}: cannot make {directory}: {error.strerror}"
                ) from error
        else:
            return directory


def _parent(config: ExperimentConfig) -> Path:
    """Where the folder of a new run is made: in ``<output_dir>/<name>``, or, of an evaluation, in the run evaluated.

    A run outside ``output_dir`` may be somebody else's, and a demo is the package's: nothing is written there.
    """
    run = run_of_checkpoint(config)
    is_within = run is not None and run.resolve().is_relative_to(Path(config.output_dir).resolve())
    if run is not None and is_within and not is_demo(run):
        refuse_links(run)
        return run / _EVALUATIONS
    return Path(config.output_dir) / config.name


def settings_of(config: ExperimentConfig) -> dict[str, Any]:
    """What a run's file holds, as plain values: what trackers are told.

    Groups at their defaults that the family never reads are left out.
    """
    read, values = family(config.model.name).groups, dataclasses.asdict(config)
    unread = {name for name, group in OPTIONAL_GROUPS.items() if name not in read and getattr(config, name) == group()}
    settings: Any = unresolved({name: _plain(value) for name, value in values.items() if name not in unread})
    return settings


def _plain(value: Any) -> Any:
    """Settings as YAML has them: choices by name."""
    if isinstance(value, Mapping):
        return {_plain(name): _plain(child) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    return value.name if isinstance(value, Enum) else value


def _changed_settings(config: ExperimentConfig, directory: Path) -> list[str]:
    """Say which settings that decide what was trained so far differ from those the run was started with."""
    stored: Any = OmegaConf.to_container(read_settings(directory))
    earlier, now = flat(result_settings(stored)), flat(result_settings(unresolved(dataclasses.asdict(config))))
    earlier = flat(result_settings(dataclasses.asdict(_defaults(config)))) | earlier
    spread, processes = _spread_over_steps(config), processes_of_run(directory)
    free = _SHARDING | (_MAY_CHANGE if spread is None else _MAY_CHANGE.difference(_LENGTH))
    free |= {_BATCH, _MICRO} if processes != number_of_processes() else set()
    changed = [key for key in now if key not in free and earlier.get(key) != now[key]]
    reasons = dict.fromkeys(_LENGTH, f" ({spread} counts on the number of updates)")
    told = [f"{key} was {earlier.get(key)}, is {now[key]}{reasons.get(key, '')}" for key in changed]
    return [*told, *_changed_step(earlier, now, processes)]


def processes_of_run(directory: Path) -> int:
    """How many processes a run had when it was last started; as many as now where its record does not say it."""
    found: int = read_record(directory).get("hardware", {}).get("processes", number_of_processes())
    return found


def _changed_step(earlier: Mapping[str, Any], now: Mapping[str, Any], processes: int) -> Iterator[str]:
    """Say that other processes make a step of more or fewer examples than it had, and how it would have as many."""
    here = number_of_processes()
    before, after = earlier[_BATCH] * earlier[_MICRO] * processes, now[_BATCH] * now[_MICRO] * here
    if processes == here or before == after:
        return
    line = f"{_counted(processes)} made a step of {before} examples"
    if before % here:
        yield f"{line}, which {_counted(here)} cannot share evenly"
    else:
        yield f"{line}, {_counted(here)} would of {after}; {_BATCH}={before // here} {_MICRO}=1 keeps them"


def _counted(processes: int) -> str:
    return f"{processes} process" + ("es" if processes > 1 else "")


def _spread_over_steps(config: ExperimentConfig) -> str | None:
    """The setting, if there is one, by which the first updates depend on how many there will be."""
    if config.trainer.schedule not in (Schedule.constant, Schedule.plateau):
        return f"trainer.schedule={config.trainer.schedule}"
    if 0 < config.trainer.warmup_steps < 1:
        return f"trainer.warmup_steps={config.trainer.warmup_steps}"
    if config.budget.target is not None:
        return f"budget.target={config.budget.target}"
    return "search" if family(config.model.name).searches(config.model) else None


def _defaults(config: ExperimentConfig) -> ExperimentConfig:
    """What the file of an older run means where it lacks a setting: the same groups, each at its defaults."""
    groups = {name: getattr(config, name) for name in ("model", "dataset", "tokenizer", "trainer")}
    return dataclasses.replace(config, **{name: type(group)() for name, group in groups.items()})


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with names joined by dots."""
    if not isinstance(node, dict) or not node:
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in flat(child, f"{prefix}{name}.").items()}


def _description(config: ExperimentConfig, earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Describe what runs, where and on what; a resumed run keeps the time it was first started."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return {
        "status": "running",
        "config_name": config.name,
        "mode": str(config.mode),
        "seed": config.seed,
        "result_hash": result_hash(config),
        "dataset_schema": next(name for name, schema in dataset_schemas().items() if schema is type(config.dataset)),
        "settings": _settings_told(config),
        "command": own_command(),
        "chosen": noted_choices() or earlier.get("chosen", []),
        "launches": launches(),
        "started": earlier.get("started", now),
        "resumed": now if earlier else None,
        "resumed_from": config.resume,
        "sweep": os.environ.get(SWEEP, earlier.get("sweep")),
        "wall_time_s": earlier.get("wall_time_s", 0.0),
        **surroundings(),
        "final_metrics": None,
        "best_checkpoint": earlier.get("best_checkpoint"),
        "trackers": earlier.get("trackers", {}),
        "error": None,
    }


def surroundings() -> dict[str, Any]:
    """What runs here: `versions` of packages, `git_commit` of the project, and `hardware`."""
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "git_commit": _git_commit(),
        "hardware": collect_hardware(),
    }


def _settings_told(config: ExperimentConfig) -> dict[str, Any]:
    """What a run is told by, of every group that says something; see `telling`."""
    groups = {name: telling(getattr(config, name)) for name in ("model", *OPTIONAL_GROUPS)}
    return {name: unresolved(group, name) for name, group in groups.items() if group}


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


@cache
def _git_commit() -> str | None:
    """Return the project's commit, marked ``+changes`` if the files differ from it; None outside a clone.

    As a process first asks: it keeps the code that it has imported, whatever is committed meanwhile.
    """

    def git(*arguments: str) -> str:
        # Without locks: a run that is killed here would leave one, which stops every later commit of the user's.
        command = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
