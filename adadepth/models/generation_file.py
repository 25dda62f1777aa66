"""Validation of a checkpoint's `generation_config.json` before a model reads it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from transformers.utils import GENERATION_CONFIG_NAME

from adadepth.errors import CheckpointError


class _Allowed(NamedTuple):
    """Allowed values of a field, as text for messages and as a test function."""

    words: str
    test: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_COUNT = _Allowed("a whole number of at least 1", lambda value: _is_whole(value) and value >= 1)
_POSITIVE = _Allowed("a number above 0", lambda value: _is_number(value) and value > 0)
_SHARE = _Allowed("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
_FLAG = _Allowed("true or false", lambda value: isinstance(value, bool))
_TOKENS = _Allowed(
    "an id or a list of ids", lambda value: all(map(_is_whole, value if isinstance(value, list) else [value]))
)
_FIELDS: dict[str, _Allowed] = {
    "do_sample": _FLAG,
    "temperature": _Allowed("a number of at least 0", lambda value: _is_number(value) and value >= 0),
    "top_p": _SHARE,
    "min_p": _SHARE,
    "typical_p": _SHARE,
    "top_k": _Allowed("a whole number of at least 0", lambda value: _is_whole(value) and value >= 0),
    "repetition_penalty": _POSITIVE,
    "length_penalty": _Allowed("a number", _is_number),
    "max_length": _COUNT,
    "max_new_tokens": _COUNT,
    "num_beams": _COUNT,
    "num_return_sequences": _COUNT,
    "bos_token_id": _TOKENS,
    "eos_token_id": _TOKENS,
    "pad_token_id": _TOKENS,
}


def check_generation_file(origin: str, folder: Path) -> None:
    """Raise an error if `generation_config.json` has values that transformers would ignore or fail on later.

    Args:
        origin: Path of the model with its setting, for the message.
        folder: Folder of the model; it may lack the file.

    Raises:
        CheckpointError: Names the field, its value and the allowed values.
    """
    file = folder / GENERATION_CONFIG_NAME
    if not file.is_file():
        return
    owner = f"{origin}: its {GENERATION_CONFIG_NAME}"
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{owner} is not JSON ({str(error).splitlines()[0]})") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{owner} must contain a JSON object, not {type(fields).__name__}")
    for name, value in fields.items():
        allowed = _FIELDS.get(name)
        if value is not None and allowed is not None and not allowed.test(value):
            raise CheckpointError(f"{owner}: {name}={value!r} must be {allowed.words}")
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckpointError(f"{owner}: {name}={value!r} must be a finite number")
    if fields.get("do_sample") and fields.get("temperature") == 0:
        raise CheckpointError(f"{owner}: temperature=0 with do_sample=true; set it above 0, or do_sample to false")
