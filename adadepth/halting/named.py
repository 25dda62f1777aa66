"""Rules that a configuration names: `name` or `name:parameter[:parameter]`, the fields of a frozen dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from adadepth.declaration import out_of_range
from adadepth.errors import ConfigError, nearest

Rule = TypeVar("Rule")
_CONVERT = {"int": int, "float": float}


def parse_named(text: object, known: Mapping[str, type[Rule]], noun: str) -> Rule:
    """The rule that a text stands for; `label` of it reads back.

    Args:
        text: Name and parameters.
        known: Dataclasses by name, whose fields are int or float, some with a range (`adadepth.declaration.setting`).
        noun: What they are, for messages.

    Raises:
        ConfigError: One line naming the text and what is allowed.
    """
    name, *values = str(text).split(":")
    if name not in known:
        raise ConfigError(f"{noun} {text!r}: must be one of {', '.join(known)}{nearest(name, known)}")
    kind: Any = known[name]
    parameters = dataclasses.fields(kind)
    form = ":".join([name, *(f"<{field.name}>" for field in parameters)])
    if len(values) > len(parameters):
        raise ConfigError(f"{noun} {text!r}: too many parameters, the form is {form}")
    try:
        converted = [_converter(field)(value) for field, value in zip(parameters, values, strict=False)]
    except ValueError as error:
        raise ConfigError(f"{noun} {text!r}: a parameter is not a number of its kind, the form is {form}") from error
    try:
        rule: Rule = kind(*converted)
    except TypeError as error:
        raise ConfigError(f"{noun} {text!r}: a parameter is missing, the form is {form}") from error
    if wrong := next(out_of_range(rule), None):
        raise ConfigError(f"{noun} {text!r}: {wrong}")
    return rule


def label(rule: Any) -> str:
    """Name and parameters, such as `quantile:0.5`; later defaults are left out."""
    parameters = [(getattr(rule, field.name), field.default) for field in dataclasses.fields(rule)]
    while len(parameters) > 1 and parameters[-1][0] == parameters[-1][1]:
        parameters.pop()
    return ":".join([rule.name, *(_shortest(value) for value, _ in parameters)])


def problem_with_rule(rule: Any, name: str, base: type) -> str | None:
    """What keeps an installed package's object from being a rule of that name, a subclass of `base`; None: nothing."""
    if not (isinstance(rule, type) and issubclass(rule, base) and dataclasses.is_dataclass(rule)):
        return f"must be a dataclass that extends {base.__module__}.{base.__name__}"
    if getattr(rule, "name", None) != name:
        return f"its name is {getattr(rule, 'name', None)!r}"
    for field in dataclasses.fields(rule):
        if field.default is dataclasses.MISSING or _type(field) not in _CONVERT:
            return f"its parameter {field.name} must be an int or a float with a default"
    return None


def _converter(field: dataclasses.Field[Any]) -> Any:
    return _CONVERT[_type(field)]


def _type(field: dataclasses.Field[Any]) -> str:
    """The name of a field's type, whether its module postpones annotations or not."""
    return field.type.__name__ if isinstance(field.type, type) else str(field.type)


def _shortest(value: float) -> str:
    """The shortest text that reads back as the number."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
