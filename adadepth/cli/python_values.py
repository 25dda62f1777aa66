"""Conversion of override values from the Python syntax of W&B sweep agents to Hydra's syntax."""

from __future__ import annotations

import ast
import re
from typing import Any

from adadepth.config.overrides import quote_text

_CLASS_NAMES = "dataset.labels"  # whose entries are texts, whatever they look like
_PLAIN_LIST = re.compile(r"\[([^][{}()\"'\\]+)\]")
_KEY_MARKS = re.compile(r"([\\()\[\]{}:=, \t])")


def from_python(override: str) -> str:
    """Convert an override with a Python value (`None`, list or mapping) to Hydra's syntax.

    Class names are quoted, so that `dataset.labels=[false,true]` and `[1.0,2.0]` stay texts.
    """
    key, equals, value = override.partition("=")
    if key.lstrip("+") == _CLASS_NAMES and (entries := _PLAIN_LIST.fullmatch(value)):
        return f"{key}=[" + ",".join(f'"{name.strip()}"' for name in entries[1].split(",")) + "]"
    if value != "None" and value[:1] not in ("{", "["):
        return override
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return override
    return f"{key}{equals}{_format_value(literal)}" if _needs_conversion(literal) else override


def _needs_conversion(value: Any) -> bool:
    """Return whether Hydra would reject a Python value, or parse it to something else."""
    if isinstance(value, list):
        return any(map(_needs_conversion, value))
    return value is None or isinstance(value, dict)


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return "[" + ",".join(map(_format_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_format_key(name)}: {_format_value(entry)}" for name, entry in value.items()) + "}"
    return quote_text(value) if isinstance(value, str) else str(value)


def _format_key(name: Any) -> str:
    return _KEY_MARKS.sub(r"\\\1", name) if isinstance(name, str) else _format_value(name)
