"""Settings that came from the environment: a run's files keep where from, `${oc.env:NAME}`, and never what it was.

What `${oc.env:TOKEN}` stands for may be a secret, and a run's folder is shared.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

_RESOLVER = "oc.env"
_LEAST = 8  # characters of a value that is looked for in a text
_noted: dict[str, str] = {}  # by dotted key, as it was written
_texts: dict[str, str] = {}  # by what it was


def note_environment(settings: DictConfig) -> None:
    """Remember which settings of the run that is about to begin came from the environment; replaces what was noted.

    OmegaConf itself resolves each setting meanwhile, with a resolver `oc.env` that notes that it was asked: so it does
    not matter through how many references, or through which other resolvers, a setting came to the environment.
    """
    references = dict(_leaves(OmegaConf.to_container(settings, resolve=False)))
    _noted.clear()
    _texts.clear()
    with _watched_environment() as asked:
        for key, text in references.items():
            asked.clear()
            value = _resolved(settings, key)
            if not asked:
                continue
            _noted[key] = text
            if isinstance(value, str):
                _texts[value] = text


@contextmanager
def _watched_environment() -> Iterator[dict[str, str]]:
    """Let `oc.env` note the variables it is asked for; yields their values by name."""
    asked: dict[str, str] = {}

    def watch(name: str, *default: str | None) -> str | None:
        asked[name] = os.environ.get(name, "")
        return oc.env(name, *default)

    OmegaConf.register_new_resolver(_RESOLVER, watch, replace=True)
    try:
        yield asked
    finally:
        OmegaConf.register_new_resolver(_RESOLVER, oc.env, replace=True)


def _resolved(settings: DictConfig, key: str) -> Any:
    """Return the value of a setting, or None where it cannot be resolved, which others say."""
    try:
        return OmegaConf.select(settings, key, throw_on_missing=False)
    except OmegaConfBaseException:
        return None


def holds_environment() -> bool:
    """Whether a setting of the run came from the environment."""
    return bool(_noted)


def restore_references(settings: DictConfig, key: str) -> None:
    """Write what came from the environment as it was written again, in a setting or a group that was resolved."""
    for name, text in _noted.items():
        if name == key or name.startswith(f"{key}."):
            OmegaConf.update(settings, name, text)


def as_written(values: Any) -> Any:
    """What a record says besides, with every text that is a value of the environment as it was written."""
    if isinstance(values, Mapping):
        return {name: as_written(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [as_written(value) for value in values]
    return _texts.get(values, values) if isinstance(values, str) else values


def told_within(text: str) -> str:
    """A text that others have written, such as an error, with the values of the environment in it as they were written.

    Values of fewer than eight characters stay: they may stand there by chance, and a secret is longer.
    """
    for value in sorted(_texts, key=len, reverse=True):  # one may hold another
        if len(value) >= _LEAST:
            text = text.replace(value, _texts[value])
    return text


def unresolved(values: Any, prefix: str = "") -> Any:
    """Settings as nested dictionaries and lists, with what came from the environment as it was written."""
    if prefix in _noted:
        return _noted[prefix]
    if isinstance(values, Mapping):
        return {name: unresolved(value, _dotted(prefix, name)) for name, value in values.items()}
    if isinstance(values, list):
        return [unresolved(value, _dotted(prefix, number)) for number, value in enumerate(values)]
    return values


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings that refer to something else, by dotted key, as they are written."""
    if isinstance(node, dict | list):
        for name, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _leaves(child, _dotted(prefix, name))
    elif isinstance(node, str) and "${" in node:
        yield prefix, node


def _dotted(prefix: str, name: Any) -> str:
    return f"{prefix}.{name}" if prefix else str(name)
