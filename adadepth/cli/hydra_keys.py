"""What a configuration may tell Hydra itself: nothing that runs code or says where to write (docs/decisions/0028).

Hydra instantiates what its own settings name, configures Python's logging by them and makes folders. A YAML file that
somebody hands on must not run or write anything by that. So every key of Hydra's own node stands here: open, of few
values, or as it is shipped.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, ListConfig, OmegaConf

from adadepth.errors import ConfigError

# Hydra itself refuses launchers and sweepers that no installed package offers.
_PLUGINS = ("hydra.launcher._target_", "hydra.sweeper._target_")
# What `instantiate` reads as code and how to call it.
_CODE = ("_target_", "_partial_", "_convert_", "_args_", "_recursive_")
# What is only shown, or what Hydra writes itself; `hydra.overrides` is compared with the command line.
_OPEN = re.compile(
    r"hydra\.(mode|(help|hydra_help|runtime|overrides|defaults)\..*"
    r"|job\.(id|num|config_name|override_dirname|config\..*))"
)  # fmt: skip
_NOTHING_THERE = "Hydra writes nothing of its own; output_dir says where runs go"
_IN_THE_SHELL = "set variables of the environment in the shell, before the command"
# Pattern of a key -> the values it can have, and what to say of others.
_CLOSED: dict[str, tuple[tuple[Any, ...], str]] = {
    r"run\.dir|sweep\.subdir": ((".",), _NOTHING_THERE),
    r"output_subdir": ((None,), _NOTHING_THERE),
    r"job\.chdir": ((None, False), "a run does not leave the folder where the command was given"),
    r"job\.env_(set|copy)\..*": ((), _IN_THE_SHELL),
    r"searchpath\..*": ((), "say the folder with --config-dir"),
    r"callbacks\..*": ((), "there are no callbacks of Hydra's here"),
}
_LEVELS = tuple(logging.getLevelNamesMapping())
_FORMATS = (
    "%(message)s", "[%(asctime)s][HYDRA] %(message)s", "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s",
)  # fmt: skip
# The same below `job_logging` and `hydra_logging`: what Hydra's own options say that write to the terminal.
_LOGS: dict[str, tuple[Any, ...]] = {
    r"version": (1,),
    r"root": (None,),
    r"disable_existing_loggers|loggers\..+\.propagate": (True, False),
    r"(root|loggers\..+|handlers\.console)\.level": _LEVELS,
    r"(root|loggers\..+)\.handlers\.\d+": ("console",),
    r"handlers\.console\.class": ("logging.StreamHandler",),
    r"handlers\.console\.stream": ("ext://sys.stdout", "ext://sys.stderr"),
    r"handlers\.console\.formatter": ("simple",),
    r"formatters\.simple\.format": _FORMATS,
}
_LOG = re.compile(r"hydra\.(?:job|hydra)_logging\.(.+)")
# The folder of the outputs of the sweep whose jobs are being composed: a job may have another, inside it.
_outputs: ContextVar[Path | None] = ContextVar("outputs", default=None)


def close_hydra_keys() -> None:
    """Have every configuration checked when it is composed, which is before Hydra instantiates anything of it."""
    compose, compose_job = ConfigLoaderImpl.load_configuration, ConfigLoaderImpl.load_sweep_config
    if hasattr(compose, "__wrapped__"):
        return

    @wraps(compose)
    def checked(self: ConfigLoaderImpl, config_name: Any, overrides: list[str], *args: Any, **kwargs: Any) -> Any:
        found = compose(self, config_name, overrides, *args, **kwargs)
        refuse_code(found, overrides)
        return found

    @wraps(compose_job)
    def checked_job(self: ConfigLoaderImpl, master_config: DictConfig, *args: Any, **kwargs: Any) -> DictConfig:
        token = _outputs.set(_folder(master_config, "output_dir"))
        try:
            return compose_job(self, master_config, *args, **kwargs)
        finally:
            _outputs.reset(token)

    ConfigLoaderImpl.load_configuration = checked  # type: ignore[method-assign]
    ConfigLoaderImpl.load_sweep_config = checked_job  # type: ignore[method-assign]


def refuse_code(composed: DictConfig, overrides: Sequence[str]) -> None:
    """Raise one ``ConfigError`` with a line for every setting of Hydra's that could run code or write somewhere.

    Args:
        composed: With Hydra's own node.
        overrides: What the command line says.
    """
    if "hydra" not in composed.hydra.runtime.choices:
        raise ConfigError(
            "hydra: add `- hydra: default` to `defaults`, which keeps Hydra from writing files of its own"
        )
    node = OmegaConf.to_container(composed.hydra, resolve=False)
    told = set(_told(overrides))
    problems = [
        _reference(composed, key, value) or _problem(composed, key, value)
        for key, value in _leaves(node, "hydra")
        if (key, value) not in told
    ]
    if len(composed.hydra.overrides.hydra) + len(composed.hydra.overrides.task) != len(overrides):
        problems.append("hydra.overrides: is what the command line says, which Hydra keeps there itself")
    if found := list(filter(None, problems)):
        raise ConfigError("\n".join(found))


def _reference(composed: DictConfig, key: str, value: Any) -> str | None:
    """A part of the configuration that stands elsewhere would be checked by nobody."""
    if not isinstance(value, str) or "${" not in value or key.startswith("hydra.help."):
        return None
    found = OmegaConf.select(composed, key, throw_on_resolution_failure=False)
    return f"{key}={value}: must be written out here" if isinstance(found, DictConfig | ListConfig) else None


def _problem(composed: DictConfig, key: str, value: Any) -> str | None:
    if key.rpartition(".")[2] in _CODE:
        if key in _PLUGINS:
            return None
        return f"{key}={value}: names code, which a configuration cannot; only installed packages add any"
    if log := _LOG.fullmatch(key):
        return _log_problem(key, log[1], value)
    for pattern, (values, reason) in _CLOSED.items():
        if re.fullmatch(rf"hydra\.(?:{pattern})", key):
            return None if value in values else f"{key}={value}: {reason}"
    if key.startswith("hydra.verbose"):
        return None if isinstance(value, bool | str) else f"{key}={value}: must be true, false, or names of loggers"
    if key.startswith("hydra.launcher."):
        return _launcher_problem(composed, key, value)
    if key in ("hydra.sweep.dir", "hydra.sweeper.folder"):
        return _place_problem(composed, key, value)
    if key == "hydra.job.name":
        return None if re.fullmatch(r"[\w.-]+", str(value)) else f"{key}={value!r}: must be a plain name"
    if _OPEN.fullmatch(key) or key.startswith("hydra.sweeper."):
        return None
    return f"{key}={value}: not a setting of Hydra's here"


def _log_problem(key: str, name: str, value: Any) -> str | None:
    """Whether a log has a value that none of Hydra's own options has there."""
    for pattern, values in _LOGS.items():
        if re.fullmatch(pattern, name):
            return None if value in values else f"{key}={value}: must be {' or '.join(map(str, values))}"
    return f"{key}={value}: of logs, a configuration can only say the level of root and loggers.NAME"


def _launcher_problem(composed: DictConfig, key: str, value: Any) -> str | None:
    """Launchers write what they are given into a script that a shell runs, and keep it in a folder."""
    if key.count(".") > 2:  # hydra.launcher.setup, additional_parameters
        return f"{key}={value}: may run or write anything, so it is read from the command line only"
    if isinstance(value, str) and "${" in value:
        value = str(OmegaConf.select(composed, key, throw_on_missing=False))
    if isinstance(value, str) and not value.isprintable():
        return f"{key}={value!r}: must be a text of one line"
    if isinstance(value, str) and ("/" in value or value == ".."):
        return _place_problem(composed, key, value)
    return None


def _place_problem(composed: DictConfig, key: str, value: Any) -> str | None:
    """Whether a folder is neither that of the command, nor inside the folder of the outputs, nor inside a sweep's."""
    place = _folder(composed, key)
    outputs = [_outputs.get(), _folder(composed, "output_dir")]
    if key.startswith("hydra.launcher."):
        outputs.append(_folder(composed, "hydra.sweep.dir"))
    if place == Path.cwd() or any(folder is not None and place.is_relative_to(folder) for folder in outputs):
        return None
    return f"{key}={value}: must be inside output_dir={composed.output_dir}"


def _folder(composed: DictConfig, key: str) -> Path:
    return Path(str(OmegaConf.select(composed, key, throw_on_missing=True))).resolve()


def _told(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """What the command line itself says of a launcher, with its dotted keys."""
    said = [override for override in overrides if override.lstrip("+").startswith("hydra.launcher.")]
    for override in OverridesParser.create().parse_overrides(said):
        if override.key_or_group.rpartition(".")[2] not in _CODE:
            yield from _leaves(override.value(), override.key_or_group)


def _leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Every value inside mappings and lists, with its dotted key."""
    if not isinstance(node, dict | list):
        yield key, node
        return
    for name, child in node.items() if isinstance(node, dict) else enumerate(node):
        yield from _leaves(child, f"{key}.{name}")
