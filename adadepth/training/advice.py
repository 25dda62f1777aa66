"""Advice of a model family on a depth that does not adapt, without what the settings of a run have already."""

from __future__ import annotations

from typing import Any

from adadepth.runtime.plain_yaml import parse_yaml

_SEPARATOR = "; "
_ABSENT = object()


def drop_current_settings(advice: str, settings: Any) -> str:
    """Return advice without the overrides that settings have already, and without parts that then have none.

    A part without any override, such as `train longer`, stays. An override to null only makes room for another one.

    Args:
        advice: Parts of the form `key=value key=value effect`, separated by "; "; see `Family.advice`.
        settings: Settings of a run, with an attribute for every part of a key.
    """
    parts = []
    for part in advice.split(_SEPARATOR):
        overrides = [word for word in part.split() if "=" in word]
        current = [override for override in overrides if _is_current(override, settings)]
        if not overrides or any(word not in current and not word.endswith("=null") for word in overrides):
            parts.append(" ".join(word for word in part.split() if word not in current))
    return _SEPARATOR.join(parts)


def drop_budgets(advice: str) -> str:
    """Return advice without the parts that begin with a depth budget, for runs that have one."""
    return _SEPARATOR.join(part for part in advice.split(_SEPARATOR) if not part.startswith("budget."))


def drop_deeper_starts(advice: str) -> str:
    """Return advice without the parts that set an initial halting bias, for models that halt at their full depth."""
    return _SEPARATOR.join(part for part in advice.split(_SEPARATOR) if "model.halt_bias_init=" not in part)


def _is_current(override: str, settings: Any) -> bool:
    """Return whether settings have the value of an override, or an initial halting bias that is deeper already."""
    key, _, text = override.partition("=")
    value, current = parse_yaml(text), settings
    for name in key.split("."):
        current = getattr(current, name, _ABSENT)
    if key == "model.halt_bias_init" and current is not _ABSENT:
        return bool(current <= value)
    return bool(current == value)
