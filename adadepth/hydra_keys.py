"""What a configuration may tell Hydra itself: nothing that runs code (docs/decisions/0028).

Hydra instantiates what its own settings name: callbacks, launcher, sweeper and log handlers. A YAML file that somebody
hands on, or a line copied from somewhere, must not run anything by that, so these places are closed.
"""

from collections.abc import Iterator
from functools import wraps
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig, ListConfig, OmegaConf

from adadepth.errors import ConfigError

# Hydra itself refuses launchers and sweepers that no installed package offers; what they are given is only data.
_PLUGINS = ("hydra.launcher._target_", "hydra.sweeper._target_")
# Callbacks of our own, by exact name.
OWN_CALLBACKS: frozenset[str] = frozenset()
_LOG_CLASSES = (
    "logging.StreamHandler", "logging.FileHandler", "logging.NullHandler", "colorlog.ColoredFormatter",
)  # fmt: skip
_LOG_STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
_LOGS = ("hydra.job_logging.", "hydra.hydra_logging.")


def close_hydra_keys() -> None:
    """Have every configuration checked when it is composed, which is before Hydra instantiates anything of it."""
    compose = ConfigLoaderImpl.load_configuration
    if hasattr(compose, "__wrapped__"):
        return

    @wraps(compose)
    def checked(self: ConfigLoaderImpl, *args: Any, **kwargs: Any) -> DictConfig:
        found = compose(self, *args, **kwargs)
        refuse_code(found)
        return found

    ConfigLoaderImpl.load_configuration = checked  # type: ignore[method-assign]


def refuse_code(composed: DictConfig) -> None:
    """Raise one ``ConfigError`` with a line for every setting of Hydra's that could run code."""
    node = OmegaConf.to_container(composed.hydra, resolve=False)
    problems = [
        _reference(composed, key, str(value)) or _problem(key, str(value)) for key, value in _leaves(node, "hydra")
    ]
    if told := list(filter(None, problems)):
        raise ConfigError("\n".join(told))


def _reference(composed: DictConfig, key: str, value: str) -> str | None:
    """A part of the configuration that stands elsewhere would be checked by nobody."""
    if "${" not in value or key.startswith("hydra.help."):
        return None
    found = OmegaConf.select(composed, key, throw_on_resolution_failure=False)
    return f"{key}={value}: must be written out here" if isinstance(found, DictConfig | ListConfig) else None


def _problem(key: str, value: str) -> str | None:
    given, last = f"{key}={value}", key.rpartition(".")[2]
    if last in ("_target_", "_partial_", "_convert_", "_args_", "_recursive_") and key not in _PLUGINS:
        is_own = key.startswith("hydra.callbacks.") and (last == "_convert_" or value in OWN_CALLBACKS)
        return None if is_own else f"{given}: names code, which a configuration cannot; only installed packages add any"
    if key.startswith("hydra.job.env_set."):
        return f"{given}: set variables of the environment in the shell, before the command"
    if key.startswith(_LOGS):
        return _log_problem(given, last, value)
    return None


def _log_problem(given: str, last: str, value: str) -> str | None:
    """What `logging.config` would import: the classes of handlers and formatters, and values with a prefix."""
    if last in ("class", "()") and value not in _LOG_CLASSES:
        return f"{given}: must be one of {', '.join(_LOG_CLASSES)}"
    if value.startswith(("ext://", "cfg://")) and value not in _LOG_STREAMS:
        return f"{given}: must be one of {', '.join(_LOG_STREAMS)}"
    if last in ("mode", "."):
        return f"{given}: not a setting of a log here"
    return None


def _leaves(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Every value inside mappings and lists, with its dotted key."""
    if not isinstance(node, dict | list):
        yield key, node
        return
    for name, child in node.items() if isinstance(node, dict) else enumerate(node):
        yield from _leaves(child, f"{key}.{name}")
