"""Rules that a configuration names: `name` or `name:parameter[:parameter]`, the fields of a frozen dataclass."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from adadepth.errors import ConfigError, nearest
from adadepth.settings.declaration import out_of_range
from adadepth.settings.plugins import installed

if TYPE_CHECKING:
    from torch import Tensor


Rule = TypeVar("Rule")
_CONVERT = {"int": int, "float": float}


def parse_named(text: object, known: Mapping[str, type[Rule]], noun: str) -> Rule:
    """The rule that a text stands for; `label` of it reads back.

    Args:
        text: Name and parameters.
        known: Dataclasses by name, whose fields are int or float, some with a range; see
            `adadepth.settings.declaration.setting`.
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


GROUP = "adadepth.halting_rules"


@dataclass(frozen=True)
class HaltingRule(ABC):
    """A rule and its parameters, which are its fields: numbers with defaults.

    Attributes:
        name: The name in configurations.
    """

    name: ClassVar[str]

    @abstractmethod
    def mass(self, probability: Tensor, accumulated: Tensor, step: int) -> Tensor:
        """q_n, from 0 on, float32; called for all units, and read of those that still run.

        Args:
            probability: p_n of the halting unit, in (0, 1), float32, any shape.
            accumulated: h_{n-1}, 0 before the first update, the same shape.
            step: n, counted from 1.
        """


@dataclass(frozen=True)
class Act(HaltingRule):
    """q_n = p_n (Graves 2016, arXiv 1603.08983)."""

    name = "act"

    def mass(self, probability: Tensor, accumulated: Tensor, step: int) -> Tensor:
        """See the class."""
        return probability


@cache
def halting_rules() -> Mapping[str, type[HaltingRule]]:
    """The rules by name: this package's, and those of installed packages.

    Raises:
        ConfigError: If one of an installed package is broken, or has a name that is taken.
    """
    own: dict[str, type[HaltingRule]] = {Act.name: Act}
    return own | installed(GROUP, "halting rule", own, _wrong)


def halting_rule(text: str) -> HaltingRule:
    """The rule that `name` or `name:parameter[:parameter]` stands for.

    Raises:
        ConfigError: One line naming the text and what is allowed.
    """
    return parse_named(text, halting_rules(), "halting rule")


def _wrong(rule: object, name: str) -> str | None:
    return problem_with_rule(rule, name, HaltingRule)
