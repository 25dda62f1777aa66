"""Values of overrides as Python writes them, which is what the agents of W&B's sweeps do, in Hydra's own writing."""

from __future__ import annotations

import ast
import re
from typing import Any

_NAMES = "dataset.labels"  # whose entries are texts, whatever they look like
_PLAIN_LIST = re.compile(r"\[([^][{}()\"'\\]+)\]")
_KEY_MARKS = re.compile(r"([\\()\[\]{}:=, \t])")


def from_python(override: str) -> str:
    """Return an override with `None`, and lists and mappings in quotes, written as Hydra reads them.

    The names of classes are put in quotes: `dataset.labels=[false,true]` and `[1.0,2.0]` are texts.
    """
    key, equals, value = override.partition("=")
    if key.lstrip("+") == _NAMES and (entries := _PLAIN_LIST.fullmatch(value)):
        return f"{key}=[" + ",".join(f'"{name.strip()}"' for name in entries[1].split(",")) + "]"
    if value != "None" and value[:1] not in ("{", "["):
        return override
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return override
    return f"{key}{equals}{_written(literal)}" if _differs(literal) else override


def _differs(value: Any) -> bool:
    """Whether Hydra reads a value of Python otherwise than Python, or not at all."""
    if isinstance(value, list):
        return any(map(_differs, value))
    return value is None or isinstance(value, dict)


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_written_key(name)}: {_written(entry)}" for name, entry in value.items()) + "}"
    return _quoted(value) if isinstance(value, str) else str(value)


def _written_key(name: Any) -> str:
    return _KEY_MARKS.sub(r"\\\1", name) if isinstance(name, str) else _written(name)


def _quoted(text: str) -> str:
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text) + "'"
