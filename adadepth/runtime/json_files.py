"""Reading of JSON files, validated against a type such as a `TypedDict`, `dict[str, ...]` or `list[...]`.

If a file does not match, the error names the file and the field. Fields that the type does not name are allowed, so
that a newer version may add some.
"""

from __future__ import annotations

import json
import math
import re
import stat
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin

from adadepth.errors import CheckpointError

JsonNumber = float | Literal["nan", "inf", "-inf"]
AT_LEAST_0, ABOVE_0 = "at least 0", "above 0"
Count = Annotated[int, AT_LEAST_0]
Positive = Annotated[float, ABOVE_0]
DepthCount = Annotated[int, AT_LEAST_0, 2**16]  # a page has a colour or a row for each
_WORDS = {dict: "a mapping", list: "a list", str: "a text", int: "a whole number", float: "a number",
          bool: "true or false", type(None): "null"}  # fmt: skip
_LARGEST, _LARGEST_FLOAT = 2**63, 2.0**504
_SURROGATE = re.compile("[\ud800-\udfff]")


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


def find_type_problem(value: Any, kind: Any) -> str | None:
    """Return which field of a value does not match its type, or None if all match.

    Args:
        value: Parsed JSON.
        kind: Type that the value should have.

    Returns:
        A sentence such as `classes.all.n must be a whole number, not 'x'`, or None if the value matches.
    """
    check = _build_check(kind) if isinstance(kind, Mapping) else _get_check(kind)
    if (problem := check(value)) is None:
        return None
    name = ".".join(map(str, problem.keys)) or "the file"
    return f"{name} {problem.words}".encode("utf-8", "backslashreplace").decode()


class _Problem(NamedTuple):
    """Mismatch of a field: the keys that lead to it from the outermost value, and what it must be."""

    keys: tuple[Any, ...]
    words: str


_Check = Callable[[Any], _Problem | None]


def _build_check(kind: Any) -> _Check:
    """Build the function that returns the first mismatch between a value and a type."""
    origin, of = get_origin(kind), get_args(kind)
    if typing.is_typeddict(kind):
        fields, required = _read_fields(kind)
        return partial(_check_mapping, _build_checks(fields), required, _check_any)
    if isinstance(kind, Mapping):  # the fields of a plug-in are optional
        return partial(_check_mapping, _build_checks(kind), [], _check_any)
    if origin is dict:
        return partial(_check_mapping, {}, [], _build_check(of[1]))
    if kind is object:
        return lambda value: None
    if kind is Any:
        return _check_any
    if origin in (Union, types.UnionType):
        return partial(_check_union, [_build_check(option) for option in of], of)
    if origin is Annotated:
        return partial(_check_range, _build_check(of[0]), of[1], of[2] if len(of) > 2 else math.inf)
    if origin is Literal:
        return partial(_check_literal, of)
    if origin is list:
        return partial(_check_list, _build_check(of[0]))
    if origin is tuple:
        return partial(_check_tuple, [_build_check(position) for position in of])
    return partial(_check_scalar, type(None) if kind is None else kind)


_get_check = cache(_build_check)


def _build_checks(kinds: Mapping[str, Any]) -> dict[str, _Check]:
    return {name: _build_check(kind) for name, kind in kinds.items()}


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


def _check_mapping(fields: dict[str, _Check], required: list[str], default: _Check, value: Any) -> _Problem | None:
    """Check the keys of a mapping, and its values by key or else by the default."""
    if not isinstance(value, dict):
        return _build_problem("a mapping", value)
    for key in required:
        if key not in value:
            return _Problem((), f"lacks {key}")
    for key, child in value.items():
        problem = (_check_text(key) if isinstance(key, str) else None) or fields.get(key, default)(child)
        if problem is not None:
            return _Problem((key, *problem.keys), problem.words)
    return None


def _check_list(check: _Check, value: Any) -> _Problem | None:
    if not isinstance(value, list):
        return _build_problem("a list", value)
    for number, child in enumerate(value):
        if (problem := check(child)) is not None:
            return _Problem((number, *problem.keys), problem.words)
    return None


def _check_tuple(checks: list[_Check], value: Any) -> _Problem | None:
    """Check a list with one type per position."""
    if not isinstance(value, list) or len(value) != len(checks):
        return _build_problem(f"a list of {len(checks)}", value)
    for number, (check, child) in enumerate(zip(checks, value, strict=True)):
        if (problem := check(child)) is not None:
            return _Problem((number, *problem.keys), problem.words)
    return None


def _check_union(checks: list[_Check], kinds: tuple[Any, ...], value: Any) -> _Problem | None:
    problems = []
    for check in checks:
        if (problem := check(value)) is None:
            return None
        problems.append(problem)
    words = list(dict.fromkeys(filter(None, map(_describe_kind, kinds))))
    if isinstance(value, dict | list) and _WORDS[type(value)] in words:
        return max(problems, key=lambda problem: len(problem.keys))
    return _build_problem(" or ".join(words), value)


def _check_range(check: _Check, minimum: str, maximum: float, value: Any) -> _Problem | None:
    """Check a number that must be at least 0 or above 0, and not above a maximum."""
    if (problem := check(value)) is not None:
        return problem
    if value > maximum:
        return _Problem((), f"must be at most {maximum}, not {value}")
    is_below = value < 0 or (value == 0 and minimum == ABOVE_0)
    return _Problem((), f"must be {minimum}, not {value}") if is_below else None


def _check_literal(options: tuple[str, ...], value: Any) -> _Problem | None:
    is_option = isinstance(value, str) and value in options
    return None if is_option else _build_problem(f"one of {', '.join(options)}", value)


def _check_any(value: Any) -> _Problem | None:
    """Check a value of any type: its texts have no unpaired surrogates, and its numbers are finite."""
    if isinstance(value, dict):
        return _check_mapping({}, [], _check_any, value)
    if isinstance(value, list):
        return _check_list(_check_any, value)
    return _check_scalar(type(value), value)


def _check_scalar(kind: Any, value: Any) -> _Problem | None:
    if kind is float and type(value) in (int, float):
        is_finite = abs(value) < _LARGEST_FLOAT
        return None if is_finite else _build_problem("a finite number", value)
    if kind is int and type(value) is int:
        return None if abs(value) < _LARGEST else _build_problem("a whole number of 64 bits", value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return _build_problem(_WORDS.get(kind, kind.__name__), value)
    return _check_text(value) if isinstance(value, str) else None


def _check_text(value: str) -> _Problem | None:
    return _Problem((), "has unpaired surrogates") if _SURROGATE.search(value) else None


def _describe_kind(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else get_origin(kind) or kind
    plain = list if plain is tuple else dict if typing.is_typeddict(plain) else plain
    return _WORDS.get(plain, "")


def _build_problem(words: str, value: Any) -> _Problem:
    text = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else json.dumps(value)
    return _Problem((), f"must be {words}, not {text if len(text) < 80 else text[:76] + ' ...'}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
