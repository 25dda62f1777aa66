"""A run's folder: its name, its record ``run.json``, its lock, atomic writes, and finding an earlier run.

Only the main process calls what writes here; the others receive the folder's path from it.
"""

import dataclasses
import json
import math
import os
import platform
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from adadepth.atomic import write_atomic
from adadepth.config import OPTIONAL_GROUPS, ExperimentConfig
from adadepth.data_sets import dataset_schemas
from adadepth.declaration import telling
from adadepth.errors import CheckpointError, nearest
from adadepth.families.registry import family
from adadepth.results import result_hash, result_settings

RECORD, CONFIG, LOCK = "run.json", "config.yaml", ".lock"
MODEL = "model"  # the folder of a run that holds its best weights
_PACKAGES = ("adadepth", "torch", "transformers", "accelerate", "datasets", "tokenizers", "hydra-core", "omegaconf")
# What a continued run may change: how long it goes on, and at which shapes architectures are compared.
_MAY_CHANGE = frozenset({
    "trainer.max_steps", "trainer.num_train_epochs", "trainer.time_budget_minutes", "trainer.early_stopping_patience",
    "search.shapes",
})  # fmt: skip


@dataclass
class Run:
    """An open run: its folder and the record that is written to ``run.json``."""

    directory: Path
    is_main: bool = True
    record: dict[str, Any] = field(default_factory=dict)

    def update(self, **fields: Any) -> None:
        """Set fields of the record and write it, e.g. ``update(final_metrics=..., best_checkpoint=...)``."""
        self.record |= fields
        if self.is_main:
            write_json(self.directory / RECORD, self.record)


@contextmanager
def open_run(config: ExperimentConfig, directory: Path, is_main: bool = True) -> Iterator[Run]:
    """Lock the folder and keep its record while a task runs: running, then finished, failed or interrupted.

    A status set by ``run.update(status=...)`` is kept. Raises ``CheckpointError`` if a live run uses the folder.
    """
    if not is_main:
        yield Run(directory, is_main=False)
        return
    with _locked(directory):
        run, earlier, begun = Run(directory), read_record(directory), time.monotonic()
        write_atomic(directory / CONFIG, OmegaConf.to_yaml(_written(config)))
        run.update(**_description(config, earlier))

        def close(status: str, **fields: Any) -> None:
            seconds = earlier.get("wall_time_s", 0.0) + time.monotonic() - begun
            status = status if run.record["status"] == "running" else run.record["status"]
            run.update(status=status, wall_time_s=round(seconds, 3), **fields)

        try:
            yield run
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
            with suppress(OSError, CheckpointError):  # a full disk must not hide the first error
                close("interrupted" if interrupted else "failed", error=f"{type(error).__name__}: {error}")
            raise
        close("finished")


def run_directory(config: ExperimentConfig) -> Path:
    """Return the folder of this run: the one to resume, after checking its settings, or a new empty one."""
    if config.resume is None:
        return _new_directory(config)
    directory = resolve_run(config.resume, config, needs="checkpoints")
    if changes := _changed_settings(config, directory):
        raise CheckpointError(f"resume={config.resume}: {directory} ran with other settings: {'; '.join(changes)}")
    return directory


def resolve_run(value: str, config: ExperimentConfig, needs: str = RECORD) -> Path:
    """Find the run folder that ``resume=``, ``run=`` or ``checkpoint=`` names.

    ``latest`` is the newest run of this configuration that has the file or folder ``needs``; raises
    ``CheckpointError`` naming the candidates.
    """
    parent = Path(config.output_dir) / config.name
    candidates = sorted(path.parent for path in parent.glob(f"*/{RECORD}") if (path.parent / needs).exists())
    if value == "latest":
        if not candidates:
            raise CheckpointError(f"latest: no run with {needs} in {parent}")
        return candidates[-1]
    directory = Path(value)
    if not (directory / RECORD).is_file():
        names = [str(path) for path in candidates]
        known = f"; newest runs of {config.name}: {', '.join(names[-3:])}" if names else ""
        raise CheckpointError(f"{value}: not a run directory (it has no {RECORD}){nearest(value, names)}{known}")
    if not (directory / needs).exists():
        raise CheckpointError(f"{value}: this run has no {needs}")
    return directory


def model_path(config: ExperimentConfig) -> str:
    """What `checkpoint` names: a run (its best model), a checkpoint, any model folder, or a hub id."""
    value = str(config.checkpoint)
    is_run = value == "latest" or (Path(value) / RECORD).is_file()
    return str(resolve_run(value, config, needs=MODEL) / MODEL) if is_run else value


def read_record(directory: Path) -> dict[str, Any]:
    """Read ``run.json``, or return an empty record where there is none."""
    path = directory / RECORD
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_json(path: Path, value: Any) -> None:
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
    """Make ``<output_dir>/<name>/<date>_<time>_<hash>-<random>``; the random part keeps simultaneous jobs apart."""
    name = f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{result_hash(config)}-{secrets.token_hex(2)}"
    directory = Path(config.output_dir) / config.name / name
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise CheckpointError(f"output_dir={config.output_dir}: cannot make {directory}: {error.strerror}") from error
    return directory


def _written(config: ExperimentConfig) -> DictConfig:
    """The configuration as a run's file holds it: without groups at their defaults that the family never reads."""
    written, read = OmegaConf.structured(config), family(config.model.name).groups
    unread = [name for name, group in OPTIONAL_GROUPS.items() if name not in read and getattr(config, name) == group()]
    return OmegaConf.masked_copy(written, [name for name in written if name not in unread])


def _changed_settings(config: ExperimentConfig, directory: Path) -> list[str]:
    """Compare the settings that may change a result with those the run in ``directory`` was started with."""
    stored: Any = OmegaConf.to_container(OmegaConf.load(directory / CONFIG))
    earlier, now = _flatten(result_settings(stored)), _flatten(result_settings(dataclasses.asdict(config)))
    earlier = _flatten(result_settings(dataclasses.asdict(_defaults(config)))) | earlier
    changed = [key for key in now if key not in _MAY_CHANGE and earlier.get(key) != now[key]]
    return [f"{key} was {earlier.get(key)}, is {now[key]}" for key in changed]


def _defaults(config: ExperimentConfig) -> ExperimentConfig:
    """What the file of an older run means where it lacks a setting: the same groups, each at its defaults."""
    groups = {name: getattr(config, name) for name in ("model", "dataset", "tokenizer", "trainer")}
    return dataclasses.replace(config, **{name: type(group)() for name, group in groups.items()})


def _flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict) or not node:
        return {prefix[:-1]: node}
    return {key: value for name, child in node.items() for key, value in _flatten(child, f"{prefix}{name}.").items()}


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
        "settings": {group: told for group in ("model", *OPTIONAL_GROUPS) if (told := telling(getattr(config, group)))},
        "command": shlex.join(["python", *sys.argv]),
        "started": earlier.get("started", now),
        "resumed": now if earlier else None,
        "resumed_from": config.resume,
        "wall_time_s": earlier.get("wall_time_s", 0.0),
        "versions": {"python": platform.python_version(), **_versions()},
        "git_commit": _git_commit(),
        "hardware": _hardware(),
        "final_metrics": None,
        "best_checkpoint": earlier.get("best_checkpoint"),
        "error": None,
    }


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _git_commit() -> str | None:
    """Return the project's commit, marked ``+changes`` if the files differ from it; None outside a clone."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _hardware() -> dict[str, Any]:
    hardware: dict[str, Any] = {"platform": platform.platform(), "machine": platform.machine(), "cpus": os.cpu_count()}
    if torch := sys.modules.get("torch"):
        hardware["threads"] = torch.get_num_threads()
        hardware["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return hardware | {"processes": int(os.environ.get("WORLD_SIZE", "1"))}


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the folder's lock file, which names process and host; one left by a dead process is taken over."""
    path = directory / LOCK
    owner = {"pid": os.getpid(), "host": socket.gethostname()}
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        _refuse_live_owner(path)
        descriptor = os.open(path, os.O_TRUNC | os.O_WRONLY)
    with os.fdopen(descriptor, "w") as file:
        json.dump(owner, file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _refuse_live_owner(path: Path) -> None:
    with suppress(json.JSONDecodeError, KeyError):
        owner = json.loads(path.read_text())
        pid, host = owner["pid"], owner["host"]
        if host != socket.gethostname() or (pid != os.getpid() and _alive(pid)):
            where = f"by process {pid} on {host}"
            raise CheckpointError(f"{path.parent}: in use {where}; if that run is dead, delete {path}")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
