"""Reading of JSON files, validated against a type such as a `TypedDict`, `dict[str, ...]` or `list[...]`.

If a file does not match, the error names the file and the field. Fields that the type does not name are allowed, so
that a newer version may add some.
"""

from __future__ import annotations

import json
import math
import stat
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from adadepth.errors import CheckpointError

JsonNumber = float | Literal["nan", "inf", "-inf"]
AT_LEAST_0, ABOVE_0 = "at least 0", "above 0"
Count = Annotated[int, AT_LEAST_0]
Positive = Annotated[float, ABOVE_0]
DepthCount = Annotated[int, AT_LEAST_0, 2**16]  # a page has a colour or a row for each
_WORDS = {dict: "a mapping", list: "a list", str: "a text", int: "a whole number", float: "a number",
          bool: "true or false", type(None): "null"}  # fmt: skip
_LARGEST = 2**63


def read_json(path: Path, kind: Any, *, allow_nan: bool = False) -> Any:
    """Read a JSON file and validate it against a type.

    Args:
        path: File, or a link to it.
        kind: Type of the content; see the module docstring.
        allow_nan: Whether fields of type `object` may hold NaN and Infinity, which other programs write.

    Raises:
        CheckpointError: If the file is missing, is not a regular file, is not JSON or does not match. The message names
            the file and the field.
    """
    content = read_regular_file(path)
    try:
        return parse_json(content.decode("utf-8"), kind, allow_nan=allow_nan)
    except ValueError as error:
        raise CheckpointError(f"{path}: is damaged: {error}") from error


def read_json_lines(path: Path, kind: Any) -> list[Any]:
    """Read and validate a JSON-lines file; ignore an incomplete last line, which a kill can leave.

    Raises:
        CheckpointError: If a line does not match; the message names file, line and field.
    """
    values = []
    for number, line in enumerate(read_regular_file(path).split(b"\n")[:-1], start=1):
        try:
            values.append(parse_json(line.decode("utf-8"), kind))
        except ValueError as error:
            raise CheckpointError(f"{path}: line {number} is damaged ({error}); repair or delete it") from error
    return values


def read_regular_file(path: Path) -> bytes:
    """Read the text of a regular file; raise an error for a pipe or device, which may never end.

    Raises:
        CheckpointError: If the path is missing, is not a regular file or cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(f"{path}: must be a file")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {(error.strerror or str(error)).lower()}") from error


def parse_json(text: str, kind: Any, *, allow_nan: bool = False) -> Any:
    """Parse JSON text and validate it against a type.

    Raises:
        ValueError: If the JSON does not match; the message names the field.
    """
    try:
        value = json.loads(text, parse_constant=None if allow_nan else _refuse_constant)
    except RecursionError as error:
        raise ValueError("not JSON: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if problem := find_type_problem(value, kind):
        raise ValueError(problem)
    return value


def find_type_problem(value: Any, kind: Any, name: str = "") -> str | None:
    """Return which field of a value does not match its type, or None if all match.

    Args:
        value: Parsed JSON.
        kind: Type that the value should have.
        name: Dotted name of the field that holds the value.

    Returns:
        A sentence such as `classes.all.n must be a whole number, not 'x'`, or None if the value matches.
    """
    origin, of = get_origin(kind), get_args(kind)
    if typing.is_typeddict(kind) or isinstance(kind, Mapping) or origin is dict:
        return _check_mapping(value, kind, name)
    if kind is object:
        return None
    if kind is Any:
        return _check_untyped(value, name)
    if origin in (Union, types.UnionType):
        return _check_union(value, of, name)
    if origin is Annotated:
        problem = find_type_problem(value, of[0], name)
        is_below = problem is None and (value < 0 or (value == 0 and ABOVE_0 in of))
        if problem is None and len(of) > 2 and value > of[2]:
            return f"{_format_field(name)} must be at most {of[2]}, not {value}"
        return f"{_format_field(name)} must be {of[1]}, not {value}" if is_below else problem
    if origin is Literal:
        return (
            None if value in of and isinstance(value, str) else _format_problem(name, f"one of {', '.join(of)}", value)
        )
    if origin is list:
        if not isinstance(value, list):
            return _format_problem(name, "a list", value)
        return _check_children([(number, child, of[0]) for number, child in enumerate(value)], name)
    if origin is tuple:
        return _check_tuple(value, of, name)
    return _check_scalar(value, kind, name)


def _check_mapping(value: Any, kind: Any, name: str) -> str | None:
    if not isinstance(value, dict):
        return _format_problem(name, "a mapping", value)
    required: list[str] = []
    if get_origin(kind) is dict:
        fields = dict.fromkeys(value, get_args(kind)[1])
    elif isinstance(kind, Mapping):  # the fields of a plug-in are optional
        fields = dict(kind)
    else:
        fields, required = _read_fields(kind)
    if (missing := next((key for key in required if key not in value), None)) is not None:
        return f"{_format_field(name)} lacks {missing}"
    return _check_children([(key, child, fields.get(key, Any)) for key, child in value.items()], name)


@cache
def _read_fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the field types of a `TypedDict`, and the names of its required fields.

    `__required_keys__` is not used, because it does not resolve annotations that are strings.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    origins = {key: get_origin(hint) for key, hint in hints.items()}
    marks: dict[Any, bool] = {typing.Required: True, typing.NotRequired: False}
    kinds = {key: get_args(hint)[0] if origins[key] in marks else hint for key, hint in hints.items()}
    return kinds, [key for key in hints if marks.get(origins[key], kind.__total__)]


def _check_children(children: list[tuple[Any, Any, Any]], name: str) -> str | None:
    """Return the first type mismatch among the keys and values of a mapping or list, or None.

    Each child is a tuple of key or index, value and type.
    """
    fields = [(f"{name}.{key}" if name else str(key), *child) for key, *child in children]
    keys = [(field, key, str) for (field, *_), (key, *_) in zip(fields, children, strict=True) if isinstance(key, str)]
    return next(filter(None, (find_type_problem(value, kind, field) for field, value, kind in (*keys, *fields))), None)


def _check_tuple(value: Any, kinds: tuple[Any, ...], name: str) -> str | None:
    """Return the first type mismatch in a list with one type per position, or None."""
    if not isinstance(value, list) or len(value) != len(kinds):
        return _format_problem(name, f"a list of {len(kinds)}", value)
    return _check_children([(number, *pair) for number, pair in enumerate(zip(value, kinds, strict=True))], name)


def _check_union(value: Any, kinds: tuple[Any, ...], name: str) -> str | None:
    problems = [find_type_problem(value, kind, name) for kind in kinds]
    if None in problems:
        return None
    deepest = max((problem for problem in problems if problem), key=lambda problem: problem.count("."))
    words = list(dict.fromkeys(filter(None, map(_describe_kind, kinds))))
    is_listed = _WORDS.get(type(value), "") in words
    return deepest if is_listed and isinstance(value, dict | list) else _format_problem(name, " or ".join(words), value)


def _check_untyped(value: Any, name: str) -> str | None:
    """Return the first problem in a value of any type: an unpaired surrogate, or a number that is not finite."""
    if isinstance(value, dict):
        return _check_children([(key, child, Any) for key, child in value.items()], name)
    if isinstance(value, list):
        return _check_children([(number, child, Any) for number, child in enumerate(value)], name)
    return _check_scalar(value, type(value), name)


def _check_scalar(value: Any, kind: Any, name: str) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        return (
            None
            if abs(value) < _LARGEST**8 and math.isfinite(value)
            else _format_problem(name, "a finite number", value)
        )
    if kind is int and is_number and isinstance(value, int):
        return None if abs(value) < _LARGEST else _format_problem(name, "a whole number of 64 bits", value)
    if kind in (None, type(None)):
        return None if value is None else _format_problem(name, "null", value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return _format_problem(name, _WORDS.get(kind, kind.__name__), value)
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        return f"{_format_field(name)} has unpaired surrogates".encode("ascii", "backslashreplace").decode()
    return None


def _describe_kind(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else get_origin(kind) or kind
    plain = list if plain is tuple else dict if typing.is_typeddict(plain) else plain
    return _WORDS.get(plain, "")


def _format_problem(name: str, words: str, value: Any) -> str:
    text = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else json.dumps(value)
    return f"{_format_field(name)} must be {words}, not {text if len(text) < 80 else text[:76] + ' ...'}"


def _format_field(name: str) -> str:
    return name or "the file"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
