"""Redaction of environment variables: run files contain the reference `${oc.env:NAME}`, never its value.

The value of `${oc.env:TOKEN}` may be a secret, and run directories are shared.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

_RESOLVER = "oc.env"
_MIN_LENGTH = 8  # characters of a value that is replaced inside a text
_references_by_key: dict[str, str] = {}
_references_by_value: dict[str, str] = {}  # of whole settings
_references_by_secret: dict[str, str] = {}  # of environment variables, which settings may contain


def record_env_references(settings: DictConfig) -> None:
    """Record which settings of the next run come from environment variables, and discard earlier records.

    OmegaConf resolves every setting while a replaced resolver `oc.env` records its calls. Reads of the environment are
    therefore found even through a chain of references and other resolvers.
    """
    references = dict(_find_references(OmegaConf.to_container(settings, resolve=False)))
    _references_by_key.clear()
    _references_by_value.clear()
    _references_by_secret.clear()
    with _record_reads() as reads:
        for key, text in references.items():
            reads.clear()
            value = _try_resolve(settings, key)
            if not reads:
                continue
            _references_by_key[key] = text
            if isinstance(value, str):
                _references_by_value[value] = text
            secrets = {os.environ[name]: f"${{oc.env:{name}}}" for name in reads if name in os.environ}
            _references_by_secret.update((secret, name) for secret, name in secrets.items() if _is_long(secret))


@contextmanager
def _record_reads() -> Iterator[list[str]]:
    """Yield a list that collects the environment variables read by OmegaConf's `oc.env` within the `with` block."""
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
    """Return the resolved value of a setting, or None if it cannot be resolved."""
    try:
        return OmegaConf.select(settings, key, throw_on_missing=False)
    except OmegaConfBaseException:
        return None


def has_env_values() -> bool:
    """Return whether any setting of the run comes from an environment variable."""
    return bool(_references_by_key)


def restore_references(settings: DictConfig, key: str) -> None:
    """Replace environment values in a setting or group of settings by their references."""
    for name, text in _references_by_key.items():
        if name == key or name.startswith(f"{key}."):
            OmegaConf.update(settings, name, text)


def redact_record(values: Any) -> Any:
    """Replace environment values in nested lists and mappings by their references.

    A text that is the value of a setting is replaced as a whole; see `redact_env_values` for other texts.
    """
    if isinstance(values, Mapping):
        return {name: redact_record(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [redact_record(value) for value in values]
    if not isinstance(values, str):
        return values
    return _references_by_value[values] if values in _references_by_value else redact_env_values(values)


def redact_env_values(text: str) -> str:
    """Replace environment values in a text, such as an error message, by their references.

    Values of fewer than eight characters are not replaced, because they may occur by chance, and a secret is longer.
    """
    references = _references_by_secret | {value: ref for value, ref in _references_by_value.items() if _is_long(value)}
    return _replace_all(text, references)


def _replace_all(text: str, references: Mapping[str, str]) -> str:
    """Replace values in a text by their references, longer values first, because one may contain another."""
    for value in sorted(references, key=len, reverse=True):
        text = text.replace(value, references[value])
    return text


def _is_long(value: str) -> bool:
    """Return whether a value is long enough to be replaced inside a text."""
    return len(value) >= _MIN_LENGTH


def with_references(values: Any, prefix: str = "") -> Any:
    """Convert settings to nested dictionaries and lists, with references in place of environment values.

    A setting that is computed from another one, such as a path that contains `name`, keeps its other text.

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
    return _replace_all(values, _references_by_secret) if isinstance(values, str) else values


def _find_references(node: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the unresolved text of every setting that contains a reference `${...}`."""
    if isinstance(node, dict | list):
        for name, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _find_references(child, _join_key(prefix, name))
    elif isinstance(node, str) and "${" in node:
        yield prefix, node


def _join_key(prefix: str, name: Any) -> str:
    return f"{prefix}.{name}" if prefix else str(name)
