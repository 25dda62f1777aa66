"""Settings that came from the environment: a run's files keep where from, `${oc.env:NAME}`, and never what it was.

What `${oc.env:TOKEN}` stands for may be a secret, and a run's folder is shared.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env\s*:")
_REFERENCE = re.compile(r"\$\{\s*([\w.]+)\s*\}")
_LEAST = 8  # characters of a value that is looked for in a text
_noted: dict[str, str] = {}  # by dotted key, as it was written
_texts: dict[str, str] = {}  # by what it was


def note_environment(settings: DictConfig) -> None:
    """Remember which settings of the run that is about to begin came from the environment; replaces what was noted."""
    references = dict(_leaves(OmegaConf.to_container(settings, resolve=False)))
    _noted.clear()
    _texts.clear()
    _noted.update({key: text for key, text in references.items() if _comes_from_environment(key, references)})
    values = {text: OmegaConf.select(settings, key, throw_on_missing=False) for key, text in _noted.items()}
    _texts.update({value: text for text, value in values.items() if isinstance(value, str)})


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


def _comes_from_environment(key: str, references: Mapping[str, str], seen: frozenset[str] = frozenset()) -> bool:
    """Whether a setting refers to the environment, if need be through others."""
    written = references.get(key)
    if written is None or key in seen:
        return False
    if _ENVIRONMENT.search(written):
        return True
    targets = (_absolute(key, target) for target in _REFERENCE.findall(written))
    return any(_comes_from_environment(target, references, seen | {key}) for target in targets)


def _absolute(key: str, target: str) -> str:
    """The dotted key that a reference in the setting `key` names: `.name` is beside it, `..name` beside its parent."""
    name = target.lstrip(".")
    up = len(target) - len(name)
    return ".".join([*key.split(".")[:-up], name]) if up else name


def _dotted(prefix: str, name: Any) -> str:
    return f"{prefix}.{name}" if prefix else str(name)
