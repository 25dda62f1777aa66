"""Protection against Hydra settings that would run code or change the working directory (docs/decisions/0028).

Hydra instantiates the classes that its settings name, configures Python's logging and sets environment variables.
Launchers write their settings into a script that a shell runs. A YAML file from another person must not be able to run
code in these ways.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import wraps
from itertools import chain
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from adadepth.errors import ConfigError

_LOGS = ("job_logging", "hydra_logging")
_INSTANTIATED = ("launcher", "sweeper", "callbacks")
_PLUGINS = ("hydra.launcher._target_", "hydra.sweeper._target_")  # Hydra takes the classes of installed plugins only
_STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
_WRITES_NOTHING = "Hydra writes no files; set output_dir for the folder of runs"
# Key of Hydra's node -> the values it can have, and what to say of others.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "run.dir": ((".",), _WRITES_NOTHING),
    "sweep.subdir": ((".",), _WRITES_NOTHING),
    "output_subdir": ((None,), _WRITES_NOTHING),
    "job.chdir": ((None, False), "a run does not change the working directory"),
    "job.env_set": (({},), "set environment variables in the shell, before the command"),
}


def guard_hydra_keys() -> None:
    """Add a check to Hydra that rejects configurations with Hydra settings that would run code."""
    compose = ConfigLoaderImpl.load_configuration  # of a job of a sweep, too
    if hasattr(compose, "__wrapped__"):
        return

    @wraps(compose)
    def compose_and_check(
        self: ConfigLoaderImpl, config_name: Any, overrides: list[str], *args: Any, **kwargs: Any
    ) -> Any:
        composed = compose(self, config_name, overrides, *args, **kwargs)
        refuse_code(composed, overrides)
        return composed

    ConfigLoaderImpl.load_configuration = compose_and_check  # type: ignore[method-assign]


def refuse_code(composed: DictConfig, overrides: Sequence[str]) -> None:
    """Raise an error for Hydra settings that could run code or write files.

    Args:
        composed: Composed configuration, including Hydra's own node.
        overrides: Overrides of the command line.

    Raises:
        ConfigError: If there is such a setting; the message names the first one.
    """
    if "hydra" not in composed.hydra.runtime.choices:
        raise ConfigError("hydra: add `- hydra: default` to `defaults`, so that Hydra writes no files")
    for problem in chain(_check_fixed(composed.hydra), _check_code(composed.hydra, overrides)):
        raise ConfigError(problem)


def _check_fixed(hydra: DictConfig) -> Iterator[str]:
    for key, (values, reason) in _FIXED.items():
        value = OmegaConf.select(hydra, key, throw_on_resolution_failure=False)
        if value not in values:
            yield f"hydra.{key}={value}: {reason}"


def _check_code(hydra: DictConfig, overrides: Sequence[str]) -> Iterator[str]:
    typed = set(_parse_launcher_overrides(overrides))
    for part in (*_INSTANTIATED, *_LOGS):
        for key, value in _resolved_leaves(hydra[part], f"hydra.{part}"):
            problem = _find_log_problem(key, value) if part in _LOGS else _find_problem(key, value, typed)
            if problem is not None:
                yield f"{key}={value if str(value).isprintable() else repr(value)}: {problem}"


def _find_problem(key: str, value: Any, typed: set[tuple[str, Any]]) -> str | None:
    if "_target_" in key.split(".") and key not in _PLUGINS:
        return "names code, but a configuration cannot name code; only installed packages can add code"
    if not key.startswith("hydra.launcher.") or (key, value) in typed:
        return None
    if key.count(".") > 2:  # hydra.launcher.setup, additional_parameters
        return "may run or write anything, so it is allowed on the command line only"
    return None if str(value).isprintable() else "must be a text of one line"


def _find_log_problem(key: str, value: Any) -> str | None:
    """Return what is wrong with a logging setting that makes `logging.config` import or call code, or None."""
    names = key.split(".")
    if "()" in names:
        return "names code, but a configuration cannot name code; only installed packages can add code"
    if names[-1] == "class" and value != "logging.StreamHandler":
        return "must be logging.StreamHandler, which writes to the terminal"
    if str(value).startswith("ext://") and value not in _STREAMS:
        return f"must be {' or '.join(_STREAMS)}"
    return None


def _parse_launcher_overrides(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of Hydra's launcher on the command line, as dotted keys and values."""
    words = [override for override in overrides if override.lstrip("+").startswith("hydra.launcher.")]
    for override in OverridesParser.create().parse_overrides(words):
        value = OmegaConf.create({"value": override.value()})["value"]
        yield from _resolved_leaves(value, override.key_or_group)


def _resolved_leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of every setting below a configuration node, with references resolved.

    Raises:
        ConfigError: If a reference cannot be resolved yet, because it could have any value later.
    """
    if not OmegaConf.is_config(node):
        yield key, node
        return
    names: Iterable[Any] = node if isinstance(node, DictConfig) else range(len(node))
    for name in names:
        if OmegaConf.is_missing(node, name):
            continue
        try:
            child = node[name]
        except OmegaConfBaseException as error:
            raise ConfigError(f"{key}.{name}: refers to a value that is not known yet; write the value here") from error
        yield from _resolved_leaves(child, f"{key}.{name}")
