"""Registry of halting rules, and the parser for rules in configurations: `name` or `name:parameter[:parameter]`."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from adadepth.config.declaration import find_range_errors
from adadepth.config.plugins import load_plugins
from adadepth.errors import ConfigError, nearest

if TYPE_CHECKING:
    from torch import Tensor


Rule = TypeVar("Rule")
_CONVERT = {"int": int, "float": float}


def parse_named(text: object, known: Mapping[str, type[Rule]], noun: str) -> Rule:
    """Parse a rule from its text, `name` or `name:parameter[:parameter]`; `label` is the inverse.

    Args:
        text: Text with the name and the parameters.
        known: Dataclasses of the rules by name. Their fields are int or float, some with a range; see
            `adadepth.config.declaration.setting`.
        noun: Kind of rule, for messages.

    Raises:
        ConfigError: If the text is no rule. The message is one line that names the text and the allowed values.
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
        converted = [_CONVERT[_read_type(field.type)](value) for field, value in zip(parameters, values, strict=False)]
    except ValueError as error:
        raise ConfigError(f"{noun} {text!r}: a parameter has the wrong type, the form is {form}") from error
    try:
        rule: Rule = kind(*converted)
    except TypeError as error:
        raise ConfigError(f"{noun} {text!r}: a parameter is missing, the form is {form}") from error
    if wrong := next(find_range_errors(rule), None):
        raise ConfigError(f"{noun} {text!r}: {wrong}")
    return rule


def label(rule: Any) -> str:
    """Format a rule as text, such as `quantile:0.5`; trailing parameters with default values are omitted."""
    parameters = [(getattr(rule, field.name), field.default) for field in dataclasses.fields(rule)]
    while len(parameters) > 1 and parameters[-1][0] == parameters[-1][1]:
        parameters.pop()
    return ":".join([rule.name, *(_format_number(value) for value, _ in parameters)])


def find_rule_problem(rule: Any, name: str, base: type) -> str | None:
    """Return why a plug-in's object is not a valid halting or exit rule with this name, or None if it is valid.

    A valid rule is a subclass of `base`.
    """
    if not (isinstance(rule, type) and issubclass(rule, base) and dataclasses.is_dataclass(rule)):
        return f"must be a dataclass that extends {base.__module__}.{base.__name__}"
    if getattr(rule, "name", None) != name:
        return f"its name is {getattr(rule, 'name', None)!r}"
    for field in dataclasses.fields(rule):
        if field.default is dataclasses.MISSING or not is_parameter_type(field.type):
            return f"its parameter {field.name} must be an int or a float with a default"
    return None


def is_parameter_type(annotation: Any) -> bool:
    """Return whether a parameter is annotated as an int or a float."""
    return _read_type(annotation) in _CONVERT


def _read_type(annotation: Any) -> str:
    """Return the name of a type, which may be annotated by a string."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _format_number(value: float) -> str:
    """Format a number with the fewest digits that Python parses back to the same value."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


GROUP = "adadepth.halting_rules"


@dataclass(frozen=True)
class HaltingRule(ABC):
    """Base class of halting rules, which turn halting probabilities into halting mass; fields are numeric parameters.

    Attributes:
        name: Name in configurations.
    """

    name: ClassVar[str]

    @abstractmethod
    def mass(self, probability: Tensor, accumulated: Tensor, step: int) -> Tensor:
        """Return each token's halting mass q_n >= 0 at this iteration, float32; a token halts once they add up to 1.

        Args:
            probability: Probability p_n of the halting unit, in (0, 1), float32, any shape.
            accumulated: Halting sum h_{n-1}, same shape as `probability`, 0 before the first update.
            step: Number n of the update, counted from 1.
        """


@dataclass(frozen=True)
class Act(HaltingRule):
    """Halting rule of ACT, whose halting mass q_n is the probability p_n (Graves 2016, arXiv 1603.08983)."""

    name = "act"

    def mass(self, probability: Tensor, accumulated: Tensor, step: int) -> Tensor:
        """Return the halting probability unchanged as the halting mass, q_n = p_n."""
        return probability


@cache
def halting_rules() -> Mapping[str, type[HaltingRule]]:
    """Return all halting rules by name, including those of plug-ins.

    Raises:
        ConfigError: If a rule of a plug-in is broken, or if its name is already taken.
    """
    rules: dict[str, type[HaltingRule]] = {Act.name: Act}
    is_wrong = partial(find_rule_problem, base=HaltingRule)
    return rules | load_plugins(GROUP, "halting rule", rules, is_wrong)


def halting_rule(text: str) -> HaltingRule:
    """Parse a halting rule from its text, `name` or `name:parameter[:parameter]`.

    Raises:
        ConfigError: If the text is no rule. The message is one line that names the text and the allowed values.
    """
    return parse_named(text, halting_rules(), "halting rule")
