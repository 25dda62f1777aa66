"""Command lines that a user can copy: the current command, and commands that resume or evaluate a run."""

import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from adadepth.config import ExperimentConfig, Mode
from adadepth.config.env_redaction import with_references
from adadepth.config.overrides import format_override

# Overrides of a training that its evaluation repeats. The data, the tokenizer and the model's settings are in the run;
# the option of the model names the family.
_TRAINER_KEYS = ("trainer.precision", "trainer.use_cpu", "trainer.per_device_eval_batch_size")
_FILE_KEYS = ("optimise", "predictions", "output_dir")
_REPEATED = ("model", "task", "trainer", *_TRAINER_KEYS, "runtime", *_FILE_KEYS, "debug", "small")

_CHOICES: list[str] = []


def note_choices(lines: Iterable[str]) -> None:
    """Store the lines that explain automatic settings to the user, replacing those of an earlier run."""
    _CHOICES[:] = lines


def get_choices() -> list[str]:
    """Return the stored lines that explain automatic settings; see `note_choices`."""
    return list(_CHOICES)


def program() -> list[str]:
    """Return the command words that start this program: `adadepth`, `python -m adadepth` or `python FILE`.

    The file is `run.py`, or a user's file that calls `adadepth.run.main`.
    """
    path, started = Path(sys.argv[0]), sys.modules["__main__"]
    if path.name == "run.py" or (path.suffix == ".py" and getattr(started, "__spec__", None) is None):
        return ["python", str(path)]
    if path.name != "adadepth":  # started as a module, or by a launcher of jobs
        return ["python", "-m", "adadepth"]
    script = shutil.which(path.name)
    return [path.name if script is not None and Path(script).resolve() == path.resolve() else str(path)]


def format_command() -> str:
    """Format the command that repeats this run, with references in place of environment values.

    For a job of a sweep, it repeats only that job.
    """
    if not HydraConfig.initialized() or HydraConfig.get().mode is not RunMode.MULTIRUN:
        return shlex.join([*program(), *map(with_references, sys.argv[1:])])
    overrides = [override for override in _read_overrides() if _get_key(override) != "sweep"]
    return shlex.join([*_start_command(HydraConfig.get().job.config_name or ""), *map(with_references, overrides)])


def build_checkpoint_command(config: ExperimentConfig, run: str, mode: Mode, *overrides: str) -> list[str]:
    """Build a command, as words, that uses the best checkpoint of a run.

    The command must be started in the same working directory.

    Args:
        config: Configuration of the training.
        run: Run directory, or `latest`.
        mode: Mode of the command.
        overrides: Additional overrides.
    """
    is_command = HydraConfig.initialized()
    current = _read_overrides() if is_command else []
    repeated = [override for override in current if _is_repeated(_get_key(override))]
    if config.seeds > 1 or any(_get_key(override) in ("seed", "seeds") for override in current):
        repeated.append(f"seed={config.seed}")
    name = (HydraConfig.get().job.config_name if is_command else None) or config.name
    return [*_start_command(name), f"mode={mode}", format_override("checkpoint", run), *repeated, *overrides]


def build_training_command(*overrides: str) -> list[str] | None:
    """Build the current training command with other overrides, as words, or None if it is unknown.

    Args:
        overrides: Overrides that replace those of the same keys. The command starts a new run.
    """
    if not HydraConfig.initialized():
        return None
    replaced = {"resume", "sweep", "rival_of", *map(_get_key, overrides)}
    repeated = [override for override in _read_overrides() if _get_key(override) not in replaced]
    return [*_start_command(HydraConfig.get().job.config_name or ""), *repeated, *overrides]


def is_given(key: str) -> bool:
    """Return whether the command line sets a key, or an option of a configuration group."""
    return key in list_overridden_keys()


def list_overrides() -> list[str]:
    """Return the overrides of the command or of a job of a sweep, with references to environment variables as text."""
    return _read_overrides() if HydraConfig.initialized() else []


def list_overridden_keys(composed: DictConfig | None = None) -> list[str]:
    """Return the configuration groups and keys that the command line sets, in order.

    Args:
        composed: Composed configuration with the node of Hydra; without it, Hydra's record of this job is read.
    """
    overrides = _read_overrides(composed.hydra) if composed is not None and "hydra" in composed else list_overrides()
    return [_get_key(override.lstrip("~")) for override in overrides]


def format_resume_command(run: Path) -> str:
    """Format the command that resumes a training run from the same working directory.

    It needs no other settings, because the run directory contains them.

    Args:
        run: Run directory.
    """
    return shlex.join([*program(), format_override("resume", run)])


def format_report_command(run: Path) -> str:
    """Format the command that writes the report of a run from its files, and records the run as finished."""
    return shlex.join([*program(), "mode=report", format_override("run", run)])


def _read_overrides(hydra: Any = None) -> list[str]:
    """Return the command-line overrides of a run, with references to environment variables unresolved."""
    overrides: Any = OmegaConf.to_container((hydra or HydraConfig.get()).overrides.task, resolve=False)
    return list(map(str, overrides))


def _is_repeated(key: str) -> bool:
    return key in _REPEATED or key.startswith("runtime.")


def _get_key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


def _start_command(name: str) -> list[str]:
    """Return the first words of a command: program, user's configuration folder, and configuration name."""
    sources = HydraConfig.get().runtime.config_sources if HydraConfig.initialized() else []
    folders = [source.path for source in sources if source.provider == "command-line"]
    return [*program(), *(word for folder in folders for word in ("--config-dir", folder)), "--config-name", name]
