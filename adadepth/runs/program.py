"""How this program was started, and commands for the same program that a person can copy."""

import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from adadepth.settings import ExperimentConfig, Mode
from adadepth.settings.overrides import format_override

# What an evaluation takes from the command line of its training: the data, the tokenizer and the model's own settings
# it takes from the run. A choice of the model says the family.
_OF_TRAINER = ("trainer.precision", "trainer.use_cpu", "trainer.per_device_eval_batch_size")
_OF_FILES = ("optimise", "predictions", "output_dir")
_KEPT = ("model", "task", "trainer", *_OF_TRAINER, "runtime", *_OF_FILES, "debug", "small")


_CHOICES: list[str] = []


def note_choices(lines: Iterable[str]) -> None:
    """Note what was chosen for the command line of this process, a line each, in place of what was noted before."""
    _CHOICES[:] = lines


def noted_choices() -> list[str]:
    """Return what `note_choices` noted."""
    return list(_CHOICES)


def program() -> list[str]:
    """The words that start this program as it was started: `adadepth`, `python -m adadepth` or that with run.py."""
    given = Path(sys.argv[0])
    if given.name == "run.py":
        return ["python", str(given)]
    if given.name != "adadepth":  # started as a module, or by a launcher of jobs
        return ["python", "-m", "adadepth"]
    is_found = (found := shutil.which(given.name)) is not None and Path(found).resolve() == given.resolve()
    return [given.name if is_found else str(given)]


def own_command() -> str:
    """What repeats this run; of a job of a sweep, that job alone."""
    if not HydraConfig.initialized() or HydraConfig.get().mode is not RunMode.MULTIRUN:
        return shlex.join([*program(), *sys.argv[1:]])
    overrides = (each for each in _given_overrides() if _key(each) != "sweep")
    return shlex.join([*_root(HydraConfig.get().job.config_name or ""), *overrides])


def checkpoint_command(config: ExperimentConfig, run: str, mode: Mode, *overrides: str) -> list[str]:
    """Return the words of what reads the best checkpoint of a training from the same working directory.

    Args:
        config: Of the training.
        run: Its folder, or `latest`.
        mode: What is done with the checkpoint.
        overrides: Further ones.
    """
    has_given = HydraConfig.initialized()
    given = _given_overrides() if has_given else []
    kept = [each for each in given if _is_kept(_key(each))]
    if config.seeds > 1 or any(_key(each) in ("seed", "seeds") for each in given):
        kept.append(f"seed={config.seed}")
    root = (HydraConfig.get().job.config_name if has_given else None) or config.name
    return [*_root(root), f"mode={mode}", format_override("checkpoint", run), *kept, *overrides]


def training_command(*overrides: str) -> list[str] | None:
    """Return the words of what trains as this program was told to, but for some overrides; None where it was not told.

    Args:
        overrides: Take the place of those of the same keys. One run goes on with none that was begun before.
    """
    if not HydraConfig.initialized():
        return None
    replaced = {"resume", "sweep", "rival_of", *map(_key, overrides)}
    kept = [override for override in _given_overrides() if _key(override) not in replaced]
    return [*_root(HydraConfig.get().job.config_name or ""), *kept, *overrides]


def is_given(key: str) -> bool:
    """Return whether the command line sets a key or chooses of a group."""
    return key in overridden_keys()


def overridden_keys() -> list[str]:
    """Return the groups and keys that the command line sets, as they were given."""
    return [_key(each.lstrip("~")) for each in _given_overrides()] if HydraConfig.initialized() else []


def continuation_command(run: Path) -> str:
    """Write what continues a training from the same working directory; all its settings are in its folder.

    Args:
        run: Its folder.
    """
    return shlex.join([*program(), format_override("resume", run)])


def _given_overrides() -> list[str]:
    """Return the overrides of this job as they were written: Hydra resolves references to the environment in them."""
    given: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return list(map(str, given))


def _is_kept(key: str) -> bool:
    return key in _KEPT or key.startswith("runtime.")


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


def _root(name: str) -> list[str]:
    """The program with the configuration, and with the user's folder of YAML files where there is one."""
    return [*program(), *(word for path in _own_folders() for word in ("--config-dir", path)), "--config-name", name]


def _own_folders() -> Iterable[str]:
    if HydraConfig.initialized():
        sources = HydraConfig.get().runtime.config_sources
        return [source.path for source in sources if source.provider == "command-line"]
    return []
