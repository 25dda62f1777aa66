"""Validation of a model family's classes against the interface in `adadepth.models.contract`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, get_args

from torch import nn

from adadepth.config import BudgetUnit
from adadepth.errors import ConfigError
from adadepth.halting.trace import DepthUnit
from adadepth.models.contract import (
    DepthKnob,
    DepthModel,
    HoldsBudget,
    LearnsGates,
    ReadsCachedStates,
    Remembers,
)
from adadepth.models.registry import Family

_PLACE = "adadepth.models.contract"


class _Value(NamedTuple):
    """Allowed values of a model attribute: a description and a test function."""

    words: str
    fits: Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_FLAG = _Value("True or False", lambda value: isinstance(value, bool))
_COUNT = _Value("a whole number of at least 1", _is_count)
_COUNT_OR_NONE = _Value(f"{_COUNT.words}, or None", lambda value: value is None or _is_count(value))
_VALUES = {
    "depth_unit": _Value(f"one of {', '.join(get_args(DepthUnit))}", lambda value: value in get_args(DepthUnit)),
    "max_updates": _COUNT,
    "longest_sequence": _COUNT_OR_NONE,
    "vocabulary_size": _COUNT_OR_NONE,
    "exit_signals": _Value("a frozenset of names", lambda value: isinstance(value, frozenset)),
    "readout_work": _Value("a number", lambda value: isinstance(value, int | float)),
    "executions": _Value(
        "a tuple that begins with 'dense'", lambda value: isinstance(value, tuple) and value[:1] == ("dense",)
    ),
    "one_depth": _COUNT_OR_NONE,
    "refills": _FLAG,
    "shows_states": _FLAG,
    "trains_in_slots": _FLAG,
    "halts_by_sequence": _FLAG,
    "depth_knob": _Value("a string", lambda value: isinstance(value, str)),
}
_NO_MODEL = f"must extend {_PLACE}.DepthModel, and then transformers.PreTrainedModel"
_OF_ENCODERS = (_NO_MODEL, "max_updates", "longest_sequence", "vocabulary_size")
# Arguments of the forward pass that a member or a mixin requires.
_TAKES: dict[str | type[DepthModel], tuple[str, ...]] = {
    "exit_signals": ("exit_rule", "run_all_steps", "generator"),
    "refills": ("places",),
    "trains_in_slots": ("carry", "draws"),
    DepthModel: ("num_targets",),
    ReadsCachedStates: ("states",),
    Remembers: ("memory", "context"),
    LearnsGates: ("gates",),
}
# Methods that training with a unit of budgets requires.
_BUDGETED = {
    BudgetUnit.updates: ("soft_depth",),
    BudgetUnit.macs: ("soft_depth",),
    BudgetUnit.deepest_layer: ("soft_depth", "limit_depth"),
    BudgetUnit.expected_layer: ("expected_depth",),
    BudgetUnit.milliseconds: ("expected_depth", "latency"),
}


def check_family(spec: Family) -> None:
    """Raise an error if a class of a model family does not implement the required interface.

    Raises:
        ConfigError: Names the family, the class, and every wrong member with its specification, in one line.
    """
    heads = [importer() for importer in spec.heads.values()]
    for head in heads:
        _refuse(spec.name, head, list(_find_mistakes(head, spec)))
    for units, mixin in ((spec.budget.trained, HoldsBudget), (spec.budget.fitted, DepthKnob)):
        if units and not any(issubclass(head, mixin) for head in heads):
            raise ConfigError(f"model={spec.name}: its budget needs a model that extends {_PLACE}.{mixin.__name__}")
    if spec.encoder is not None:
        encoder = spec.encoder()
        _refuse(spec.name, encoder, [line for line in _check_members(encoder) if line.startswith(_OF_ENCODERS)])


def check_model(model: Any, name: str) -> None:
    """Raise an error if a built model has properties with invalid values.

    Raises:
        ConfigError: As in `check_family`.
    """
    values = {member: getattr(model, member) for member in _VALUES if hasattr(type(model), member)}
    _refuse(name, type(model), [line for member, value in values.items() for line in _check_value(member, value)])
    promised = [member for member in _TAKES if isinstance(member, str) and values[member]]
    _refuse(name, type(model), list(_check_forward(type(model), promised)))
    for path, part in model.named_modules():
        if part is not model and getattr(part, "draws_alone", False):
            raise ConfigError(
                f"model={name}: {type(model).__name__}: {path} must be an encoder part, not the model "
                f"{type(part).__name__}, which initialises its weights before the heads exist"
            )


def _refuse(name: str, head: type, mistakes: Sequence[str]) -> None:
    if mistakes:
        raise ConfigError(f"model={name}: {head.__name__}: {'; '.join(mistakes)}")


def _find_mistakes(head: type, spec: Family) -> Iterator[str]:
    """Yield the errors in a model class that can be found without building a model."""
    yield from _check_members(head)
    if not issubclass(head, DepthModel):
        return
    mixins = [promise for promise in _TAKES if isinstance(promise, type) and issubclass(head, promise)]
    yield from _check_forward(head, mixins)
    if issubclass(head, DepthKnob) and head.fit_depth is DepthKnob.fit_depth:
        yield from _check_overrides(head, ("set_depth_level",), DepthKnob)
    if issubclass(head, HoldsBudget):
        names = dict.fromkeys(name for unit in spec.budget.trained for name in _BUDGETED[unit])
        yield from _check_overrides(head, (*names, *(("force_depth",) if spec.budget.grows else ())), HoldsBudget)


def _check_members(head: type) -> Iterator[str]:
    """Yield an error for each attribute of the model interface that a class lacks or defines wrongly."""
    if not issubclass(head, DepthModel):
        yield _NO_MODEL
        return
    bases = [base for base in head.__mro__ if base.__module__ == DepthModel.__module__]
    for name in dict.fromkeys(name for base in reversed(bases) for name in vars(base) if not name.startswith("_")):
        member = inspect.getattr_static(head, name)
        required = next(vars(base)[name] for base in bases if name in vars(base))
        if getattr(getattr(member, "fget", member), "is_required", False):
            yield f"{name} is missing; {_describe_member(name, required)}"
        elif name in _VALUES:
            if not isinstance(member, property):
                yield from _check_value(name, member)
        elif not callable(getattr(head, name)) and not isinstance(required, property):
            yield f"{name} is not a method; {_describe_member(name, required)}"


def _describe_member(name: str, required: Any) -> str:
    """Describe a required attribute by its kind and the first line of its docstring, for error messages."""
    kind = _VALUES[name].words if name in _VALUES else "a property" if isinstance(required, property) else "a method"
    summary = (inspect.getdoc(required) or "").partition("\n")[0].rstrip(".")
    return f"it must be {kind}: {summary}"


def _check_value(name: str, value: Any) -> Iterator[str]:
    allowed = _VALUES[name]
    if not allowed.fits(value):
        yield f"{name}={value!r} must be {allowed.words}"


def _check_forward(head: Any, promises: Sequence[str | type[DepthModel]]) -> Iterator[str]:
    """Yield an error for each required argument that a model's forward pass lacks."""
    if head.forward is nn.Module.forward:
        if DepthModel in promises:
            yield "forward is missing; it must be a method: from a batch to outputs, see adadepth.models.head_outputs"
        return
    parameters = inspect.signature(head.forward).parameters
    for promise in promises:
        for name in _TAKES[promise]:
            if name not in parameters:
                reason = promise if isinstance(promise, str) else promise.__name__
                yield f"forward must accept {name}, because of {reason}"


def _check_overrides(head: type, names: Sequence[str], mixin: type) -> Iterator[str]:
    for name in names:
        if getattr(head, name) is getattr(mixin, name):
            yield f"{name} is missing; {_describe_member(name, vars(mixin)[name])}"
