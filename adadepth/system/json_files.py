"""JSON files read against a description: a `TypedDict`, `dict[str, ...]`, `list[...]` or `{field: type}`.

Whoever wrote a file, it is either as it is described or is refused in a sentence that names the file and the field.
Fields that no description names are left alone, so that a newer version may add some.
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

INFINITE = ("nan", "inf", "-inf")  # numbers that JSON cannot hold, as texts
JsonNumber = float | Literal["nan", "inf", "-inf"]
AT_LEAST_0, ABOVE_0 = "at least 0", "above 0"
Count = Annotated[int, AT_LEAST_0]
Positive = Annotated[float, ABOVE_0]
DepthCount = Annotated[int, AT_LEAST_0, 2**16]  # what a page has a colour or a row for
_WORDS = {dict: "a mapping", list: "a list", str: "a text", int: "a whole number", float: "a number",
          bool: "true or false", type(None): "null"}  # fmt: skip
_LARGEST = 2**63


def read_json(path: Path, kind: Any, *, allow_nan: bool = False) -> Any:
    """Read a JSON file of the described kind.

    Args:
        path: The file, or a link to it.
        kind: A type, see the module.
        allow_nan: Whether NaN and Infinity may stand in fields of the type `object`, as other programs write them.

    Raises:
        CheckpointError: Naming file and field, if it is missing, no file, no JSON or of another kind.
    """
    try:
        return parse_json(read_regular(path).decode("utf-8"), kind, allow_nan=allow_nan)
    except ValueError as error:
        raise _named(path, error) from error


def read_json_lines(path: Path, kind: Any) -> list[Any]:
    """Read a file of JSON lines, each of the described kind; a last line that a kill has cut short is left out.

    Raises:
        CheckpointError: Naming file, line and field.
    """
    found = []
    for number, line in enumerate(read_regular(path).split(b"\n")[:-1], start=1):
        try:
            found.append(parse_json(line.decode("utf-8"), kind))
        except ValueError as error:
            raise CheckpointError(f"{path}: line {number} is damaged ({error}); repair or delete it") from error
    return found


def read_regular(path: Path) -> bytes:
    """Read a regular file; a pipe or a device is never opened, since reading it may have no end.

    Raises:
        CheckpointError: If it is something else, missing or cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(f"{path}: must be a file")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {(error.strerror or str(error)).lower()}") from error


def parse_json(text: str, kind: Any, *, allow_nan: bool = False) -> Any:
    """Parse JSON of the described kind, see `read_json`.

    Raises:
        ValueError: In words that name the field.
    """
    try:
        value = json.loads(text, parse_constant=None if allow_nan else _refuse_constant)
    except RecursionError as error:
        raise ValueError("no JSON: it is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error
    if problem := type_problem(value, kind):
        raise ValueError(problem)
    return value


def type_problem(value: Any, kind: Any, name: str = "") -> str | None:
    """Say which field of a value is not of its type.

    Args:
        value: As JSON is parsed.
        kind: Its type.
        name: The dotted name of the field, for the sentence.

    Returns:
        `classes.all.n must be a whole number, not 'x'`; None: all is as described.
    """
    origin, of = get_origin(kind), get_args(kind)
    if typing.is_typeddict(kind):
        return _wrong_mapping(value, name) or _problem_of_fields(value, kind, name)
    if isinstance(kind, Mapping):  # of a plug-in: each field may be absent
        children = [(key, value[key], kind.get(key, Any)) for key in value] if isinstance(value, dict) else []
        return _wrong_mapping(value, name) or _first_problem(children, name)
    if kind is object:
        return None
    if kind is Any:
        return _problem_of_any(value, name)
    if origin in (Union, types.UnionType):
        return _problem_of_union(value, of, name)
    if origin is Annotated:
        problem = type_problem(value, of[0], name)
        is_below = problem is None and (value < 0 or (value == 0 and ABOVE_0 in of))
        if problem is None and len(of) > 2 and value > of[2]:
            return f"{_field(name)} must be at most {of[2]}, not {value}"
        return f"{_field(name)} must be {of[1]}, not {value}" if is_below else problem
    if origin is Literal:
        return None if value in of and isinstance(value, str) else _wrong(name, f"one of {', '.join(of)}", value)
    if origin is dict:
        children = [] if not isinstance(value, dict) else [(key, value[key], of[1]) for key in value]
        return _wrong_mapping(value, name) or _first_problem(children, name)
    if origin is list:
        children = [] if not isinstance(value, list) else [(number, child, of[0]) for number, child in enumerate(value)]
        return None if not children and value == [] else _problem_of_list(value, children, name)
    if origin is tuple:
        return _problem_of_tuple(value, of, name)
    return _problem_of_scalar(value, kind, name)


def _problem_of_fields(value: Mapping[str, Any], kind: Any, name: str) -> str | None:
    fields, required = _fields(kind)
    for key in required:
        if key not in value:
            return f"{_field(name)} lacks {key}"
    return _first_problem([(key, child, fields.get(key, Any)) for key, child in value.items()], name)


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the types of a `TypedDict` by field, and the fields that must be there.

    `__required_keys__` does not see through annotations that are texts.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    origins = {key: get_origin(hint) for key, hint in hints.items()}
    marks: dict[Any, bool] = {typing.Required: True, typing.NotRequired: False}
    types_of = {key: get_args(hint)[0] if origins[key] in marks else hint for key, hint in hints.items()}
    return types_of, [key for key in hints if marks.get(origins[key], kind.__total__)]


def _first_problem(children: list[tuple[Any, Any, Any]], name: str) -> str | None:
    problems = (
        type_problem(key, str, f"{name}.{key}" if name else str(key)) if isinstance(key, str) else None
        for key, _, _ in children
    )
    if problem := next(filter(None, problems), None):
        return problem
    named = ((f"{name}.{key}" if name else str(key), child, kind) for key, child, kind in children)
    return next(filter(None, (type_problem(child, kind, each) for each, child, kind in named)), None)


def _problem_of_list(value: Any, children: list[tuple[Any, Any, Any]], name: str) -> str | None:
    return _first_problem(children, name) if isinstance(value, list) else _wrong(name, "a list", value)


def _problem_of_tuple(value: Any, kinds: tuple[Any, ...], name: str) -> str | None:
    """A list of so many members, each of its own type."""
    if not isinstance(value, list) or len(value) != len(kinds):
        return _wrong(name, f"a list of {len(kinds)}", value)
    return _first_problem([(number, *pair) for number, pair in enumerate(zip(value, kinds, strict=True))], name)


def _problem_of_union(value: Any, kinds: tuple[Any, ...], name: str) -> str | None:
    problems = [type_problem(value, kind, name) for kind in kinds]
    if None in problems:
        return None
    deepest = max((problem for problem in problems if problem), key=lambda problem: problem.count("."))
    words = list(dict.fromkeys(filter(None, map(_word, kinds))))
    own = _WORDS.get(type(value), "")
    return deepest if own in words and isinstance(value, dict | list) else _wrong(name, " or ".join(words), value)


def _problem_of_any(value: Any, name: str) -> str | None:
    """Of what nobody describes, texts have characters and numbers are finite."""
    if isinstance(value, dict):
        return _first_problem([(key, child, Any) for key, child in value.items()], name)
    if isinstance(value, list):
        return _first_problem([(number, child, Any) for number, child in enumerate(value)], name)
    return _problem_of_scalar(value, type(value), name)


def _problem_of_scalar(value: Any, kind: Any, name: str) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        return None if abs(value) < _LARGEST**8 and math.isfinite(value) else _wrong(name, "a finite number", value)
    if kind is int and is_number and isinstance(value, int):
        return None if abs(value) < _LARGEST else _wrong(name, "a whole number of 64 bits", value)
    if kind in (None, type(None)):
        return None if value is None else _wrong(name, "null", value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return _wrong(name, _WORDS.get(kind, kind.__name__), value)
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        return f"{_field(name)} has halves of characters".encode("ascii", "backslashreplace").decode()
    return None


def _wrong_mapping(value: Any, name: str) -> str | None:
    return None if isinstance(value, dict) else _wrong(name, "a mapping", value)


def _word(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else get_origin(kind) or kind
    plain = list if plain is tuple else dict if typing.is_typeddict(plain) else plain
    return _WORDS.get(plain, "")


def _wrong(name: str, words: str, value: Any) -> str:
    shown = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else json.dumps(value)
    return f"{_field(name)} must be {words}, not {shown if len(shown) < 80 else shown[:76] + ' ...'}"


def _field(name: str) -> str:
    return name or "the file"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _named(path: Path, error: Exception) -> CheckpointError:
    return error if isinstance(error, CheckpointError) else CheckpointError(f"{path}: is damaged: {error}")
