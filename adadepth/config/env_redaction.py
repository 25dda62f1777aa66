"""Redaction of values of environment variables: a run's files keep the reference, `${oc.env:NAME}`, never its value.

The value of `${oc.env:TOKEN}` may be a secret, and run directories are shared.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

_RESOLVER = "oc.env"
_MIN_LENGTH = 8  # characters of a value that is replaced inside a text
_references_by_key: dict[str, str] = {}
_references_by_value: dict[str, str] = {}


def record_env_references(settings: DictConfig) -> None:
    """Record which settings of the run to come are read from the environment, in place of those of the run before.

    OmegaConf resolves every setting meanwhile with a resolver `oc.env` that records its calls. A setting can therefore
    reach the environment through any number of references and other resolvers.
    """
    references = dict(_find_references(OmegaConf.to_container(settings, resolve=False)))
    _references_by_key.clear()
    _references_by_value.clear()
    with _record_reads() as reads:
        for key, text in references.items():
            reads.clear()
            value = _try_resolve(settings, key)
            if not reads:
                continue
            _references_by_key[key] = text
            if isinstance(value, str):
                _references_by_value[value] = text


@contextmanager
def _record_reads() -> Iterator[list[str]]:
    """Let `oc.env` append the names of the variables that it reads to the list that is yielded."""
    reads: list[str] = []

    def record(name: str, *default: str | None) -> str | None:
        reads.append(name)
        return oc.env(name, *default)

    OmegaConf.register_new_resolver(_RESOLVER, record, replace=True)
    try:
        yield reads
    finally:
        OmegaConf.register_new_resolver(_RESOLVER, oc.env, replace=True)


def _try_resolve(settings: DictConfig, key: str) -> Any:
    """Return the value of a setting; None if it cannot be resolved, which `to_config` reports."""
    try:
        return OmegaConf.select(settings, key, throw_on_missing=False)
    except OmegaConfBaseException:
        return None


def has_env_values() -> bool:
    """Return whether a setting of the run is read from the environment."""
    return bool(_references_by_key)


def restore_references(settings: DictConfig, key: str) -> None:
    """Put references to the environment back into a setting or a group that was resolved."""
    for name, text in _references_by_key.items():
        if name == key or name.startswith(f"{key}."):
            OmegaConf.update(settings, name, text)


def redact_record(values: Any) -> Any:
    """Return nested values with every text that is a value of the environment replaced by its reference."""
    if isinstance(values, Mapping):
        return {name: redact_record(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [redact_record(value) for value in values]
    return _references_by_value.get(values, values) if isinstance(values, str) else values


def redact_env_values(text: str) -> str:
    """Return a text, such as an error, with values of the environment in it replaced by their references.

    Values of fewer than eight characters stay: they may occur by chance, and a secret is longer.
    """
    for value in sorted(_references_by_value, key=len, reverse=True):  # one may contain another
        if len(value) >= _MIN_LENGTH:
            text = text.replace(value, _references_by_value[value])
    return text


def with_references(values: Any, prefix: str = "") -> Any:
    """Return settings as nested dictionaries and lists, with references to the environment instead of its values.

    Args:
        values: Resolved settings.
        prefix: Dotted key of the settings in the configuration.
    """
    if prefix in _references_by_key:
        return _references_by_key[prefix]
    if isinstance(values, Mapping):
        return {name: with_references(value, _join_key(prefix, name)) for name, value in values.items()}
    if isinstance(values, list):
        return [with_references(value, _join_key(prefix, number)) for number, value in enumerate(values)]
    return values


def _find_references(node: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted keys and texts of settings with a reference."""
    if isinstance(node, dict | list):
        for name, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _find_references(child, _join_key(prefix, name))
    elif isinstance(node, str) and "${" in node:
        yield prefix, node


def _join_key(prefix: str, name: Any) -> str:
    return f"{prefix}.{name}" if prefix else str(name)
