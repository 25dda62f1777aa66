"""Declaration of settings with default, help and allowed range, and checks of values against declarations.

Settings are fields of dataclasses, declared with `setting`. They define the schema that YAML files and the command line
fill, its checks and its help. For a model family, they also define the fields of its `PreTrainedConfig`. This module
does not import torch, transformers or any other part of the package.
"""

import copy
import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

# OmegaConf's mark of a setting without a default. Importing it would take a tenth of a second whenever a model is used,
# which needs nothing else of OmegaConf.
MISSING: Any = "???"


@dataclass(frozen=True)
class Allowed:
    """Range of values that a setting allows.

    Attributes:
        test: Function that returns whether a value is allowed; it is never called with None.
        words: Range in words, which continues the phrase "must be".
    """

    test: Callable[[Any], bool]
    words: str


def at_least(low: float) -> Allowed:
    """Return the range of all finite numbers from `low` on."""
    return Allowed(lambda value: low <= value < math.inf, f"at least {low}")


def between(low: float, high: float) -> Allowed:
    """Return the range of all numbers from `low` to `high`, both included."""
    return Allowed(lambda value: low <= value <= high, f"from {low} to {high}")


POSITIVE = Allowed(lambda value: 0 < value < math.inf, "above 0")
SHARE = Allowed(lambda value: 0 <= value <= 1, "from 0 to 1")
OPEN_SHARE = Allowed(lambda value: 0 < value < 1, "above 0 and below 1")
BELOW_ONE = Allowed(lambda value: 0 <= value < 1, "at least 0 and below 1")
FINITE = Allowed(math.isfinite, "a finite number")
TEXTS = Allowed(lambda value: _has_type(value, str | list[str]), "a text or a list of texts")
FILES = Allowed(
    lambda value: _has_type(value, str | list[str] | dict[str, str | list[str]]),
    "a text, a list of texts, or a mapping of names to these",
)

_TYPES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "null"}
_MAX_PRINTED = 200  # characters of a value in a line of an error
_MAX_TEXT = 4096  # characters of a path
_FREE_TEXTS = ("text", "symbols")  # settings that hold text, not a name
_UNICODE = re.compile(r"[^\ud800-\udfff]*").fullmatch
_LINE = re.compile(rf"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{{0,{_MAX_TEXT}}}").fullmatch

_KEY = "adadepth"  # of a field's metadata
_UNSET: Any = object()  # where None is a value


@dataclass(frozen=True)
class FieldSpec:
    """Properties of a setting besides its type and default: help, allowed range, and others.

    Attributes:
        help: Meaning of the setting in one line.
        more: Further sentences, such as an equation, its source, or the effect of each choice. `--help` omits them.
        allowed: Allowed range. The choices of an enumeration follow from its type.
        shape: Whether the setting determines the shape or the meaning of weights, which cannot be used with another
            value.
        later: Whether the setting is newer than the first saved models of its family, so that their files may lack it.
        neutral: Whether the setting can change only speed or written files, but never the weights of a run.
        in_model: Whether the setting is also a field of the model's configuration file.
        hub: Default for a model's configuration file that lacks the setting, if it differs from the default here.
        debug: Value with `debug=default`, a run that takes seconds.
    """

    help: str
    more: str
    allowed: Allowed | None
    shape: bool
    later: bool
    neutral: bool
    in_model: bool
    hub: Any
    debug: Any

    @property
    def differs_on_hub(self) -> bool:
        """Whether a model's stored configuration has another default than an experiment's YAML file."""
        return self.hub is not _UNSET

    @property
    def shrinks(self) -> bool:
        """Whether `debug=default` gives the setting a smaller value."""
        return self.debug is not _UNSET


def setting(
    default: Any,
    help: str,
    allowed: Allowed | None = None,
    *,
    shape: bool = False,
    later: bool = False,
    neutral: bool = False,
    in_model: bool = True,
    hub: Any = _UNSET,
    debug: Any = _UNSET,
    more: str = "",
) -> Any:
    """Declare a field of a settings dataclass, with default, help and allowed range.

    Args:
        default: Default value. For every instance, a list or dictionary is copied, and a class is instantiated.
        help: Meaning in one line, which begins in lower case and ends without a full stop.
        allowed: Allowed range, if there is one.
        shape: See `FieldSpec`, as for all other arguments.
        later: Flag of a setting that is newer than the first models of its family.
        neutral: Flag of a setting without influence on the weights of a run.
        in_model: Flag of a setting that is a field of the model's configuration file.
        hub: Default for a model's configuration file that lacks the setting.
        debug: Value with `debug=default`.
        more: Further help in complete sentences.
    """
    return make_field(default, FieldSpec(help, more, allowed, shape, later, neutral, in_model, hub, debug))


def make_field(default: Any, spec: FieldSpec) -> Any:
    """Build a dataclass field from a default and the properties of a setting; see `setting`."""
    metadata = {_KEY: spec}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def get_field_specs(settings: Any) -> dict[str, FieldSpec]:
    """Return the declared properties of every setting of a dataclass by the name of the setting, in order.

    For any other object, the result is empty.
    """
    fields = dataclasses.fields(settings) if dataclasses.is_dataclass(settings) else ()
    return {field.name: field.metadata[_KEY] for field in fields if _KEY in field.metadata}


def copy_field(settings: type, name: str) -> Any:
    """Build a dataclass field with the default and properties of another dataclass's setting."""
    field = next(field for field in dataclasses.fields(settings) if field.name == name)
    return make_field(field.default, field.metadata[_KEY])


def format_help(spec: FieldSpec, options: Collection[str] = ()) -> str:
    """Format the help and the allowed range of a setting as one line.

    Args:
        spec: Properties of the setting.
        options: Choices if the setting is an enumeration, from `choices`.
    """
    parts = (
        spec.help,
        f"one of {', '.join(options)}" if options else "",
        spec.allowed.words if spec.allowed else "",
    )
    return "; ".join(filter(None, parts))


def find_type_errors(settings: Any, prefix: str = "") -> Iterator[str]:
    """Yield one error line for every setting whose value has the wrong type or contains control characters.

    Lists and mappings of a configuration can hold any values at any depth. After this check, code that reads them can
    rely on their types.
    """
    hints = typing.get_type_hints(type(settings))
    for name, spec in get_field_specs(type(settings)).items():
        key, value = prefix + name, getattr(settings, name)
        if dataclasses.is_dataclass(hints[name]) and isinstance(value, hints[name]):
            yield from find_type_errors(value, f"{key}.")
        elif not _has_type(value, hints[name]):
            yield f"{key}={format_value(value)}: must be {_describe_type(hints[name])}"
        elif hints[name] is Any and spec.allowed and value is not None and not spec.allowed.test(value):
            yield f"{key}={format_value(value)}: must be {spec.allowed.words}"
        elif not all(map(_UNICODE if name in _FREE_TEXTS else _LINE, _texts(value))):
            line = f"a line of at most {_MAX_TEXT} characters without control characters"
            yield f"{key}={format_value(value)}: must be {'text in Unicode' if name in _FREE_TEXTS else line}"


def format_value(value: Any) -> str:
    """Format a value for an error message; the middle of a long value is omitted."""
    text = str(value) if str(value).isprintable() else repr(str(value))
    return text if len(text) <= _MAX_PRINTED else f"{text[: _MAX_PRINTED // 2]} ... {text[-_MAX_PRINTED // 4 :]}"


def find_range_errors(settings: Any, prefix: str = "") -> Iterator[str]:
    """Yield one error line for every setting, also in nested dataclasses, whose value is outside its allowed range."""
    for name, spec in get_field_specs(type(settings)).items():
        key, value = prefix + name, getattr(settings, name)
        if dataclasses.is_dataclass(value):
            yield from find_range_errors(value, f"{key}.")
        elif not fits_64_bits(value):
            yield f"{key}={format_value(value)}: must be an integer of 64 bits"
        elif spec.allowed is not None and value is not None:
            if not spec.allowed.test(value):
                yield f"{key}={format_value(value)}: must be {spec.allowed.words}"
        elif not all(math.isfinite(leaf) for leaf in _leaves(value) if isinstance(leaf, float)):
            yield f"{key}={format_value(value)}: must be finite"


# Fields of models whose values are enumerated: numbers of blocks, and of their repetitions.
_BLOCKS = frozenset({
    "num_hidden_layers", "core", "prelude", "coda", "low_layers", "layers_num", "num_layers", "answer_layers",
    "attention_layers_num", "halting_head_layers", "recursions", "inner_group_num", "num_hidden_groups",
})  # fmt: skip
_REPEATS = ("num_loops", "num_steps", "cycles", "reasoning_updates", "low_cycles")
_REPEATED = ("core", "num_layers")
_MAX_BLOCKS, _MAX_UPDATES = 4096, 2**15
# Words in the names of such fields in models of others.
_STORED_COUNTS = {
    "layer": _MAX_BLOCKS, "cycles": _MAX_UPDATES, "loops": _MAX_UPDATES, "recurrence": _MAX_UPDATES,
    "ut_steps": _MAX_UPDATES,
}  # fmt: skip


def find_excessive_counts(model: Any, prefix: str = "") -> Iterator[str]:
    """Yield one error line for every field of a model so large that building or running the model would never end.

    Args:
        model: Settings or configuration of a model.
        prefix: Text before the name of a field in the lines.
    """
    names = (*_BLOCKS, *_REPEATS)
    counts = {name: value for name in names if isinstance(value := getattr(model, name, None), int)}
    for name in sorted(_BLOCKS & counts.keys()):
        if counts[name] > _MAX_BLOCKS and name in get_field_specs(type(model)):
            yield f"{prefix}{name}={format_value(counts[name])}: must be at most {_MAX_BLOCKS}"
    factors = {name: counts[name] for name in (*_REPEATED, *_REPEATS) if name in counts}
    if math.prod(factors.values()) > _MAX_UPDATES:
        largest = max(factors, key=lambda name: factors[name])
        product = " x ".join(prefix + name for name in factors)
        yield f"{prefix}{largest}={format_value(factors[largest])}: {product} must be at most {_MAX_UPDATES}"


def find_excessive_stored_count(stored: Mapping[str, Any]) -> str | None:
    """Return which field of any model's stored configuration names too many layers or repetitions, or None."""
    for name, value in stored.items():
        most = next((most for word, most in _STORED_COUNTS.items() if word in name), math.inf)
        if isinstance(value, int) and value > most:
            return f"{name}={format_value(value)} must be at most {most}"
        if isinstance(value, dict) and (problem := find_excessive_stored_count(value)):
            return f"{name}.{problem}"
    return None


def fits_64_bits(value: Any) -> bool:
    """Return whether all integers in a value fit into 64 bits, as tensors and other languages require."""
    return all(-(2**63) <= leaf < 2**63 for leaf in _leaves(value) if isinstance(leaf, int))


def _leaves(value: Any) -> Iterator[Any]:
    """Yield all values and keys inside nested lists and mappings."""
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _leaves(child)
    else:
        yield value


def _texts(value: Any) -> Iterator[str]:
    return (leaf for leaf in _leaves(value) if isinstance(leaf, str))


def _has_type(value: Any, kind: Any) -> bool:
    """Return whether a value and its items match a type annotation."""
    if kind is Any:
        return all(leaf is None or isinstance(leaf, str | int | float) for leaf in _leaves(value))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return isinstance(value, list) and all(_has_type(item, inner[0]) for item in value)
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else [(None, None)]
        return all(_has_type(name, inner[0]) and _has_type(item, inner[1]) for name, item in pairs)
    if len(members := _get_members(kind)) > 1:
        return any(_has_type(value, member) for member in members)
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _describe_type(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return f"a list, each {_describe_type(inner[0])}"
    if origin is dict:
        return f"a mapping, each value {_describe_type(inner[1])}"
    if len(members := _get_members(kind)) > 1:
        return " or ".join(map(_describe_type, members))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return f"one of {', '.join(kind)}"
    if dataclasses.is_dataclass(kind):
        return "a group of settings"
    return _TYPES.get(kind, "made of strings, numbers, lists and mappings")


def choices(settings: type) -> dict[str, tuple[str, ...]]:
    """Return the allowed options of every setting with an enumerated type, by setting name."""
    types_by_name = {name: _find_enumeration(hint) for name, hint in typing.get_type_hints(settings).items()}
    return {name: tuple(map(str, kind)) for name, kind in types_by_name.items() if kind is not None}


def shapes(settings: type) -> list[str]:
    """Return the names of the settings that determine the shape or meaning of the model's weights."""
    return [name for name, spec in get_field_specs(settings).items() if spec.shape]


def select_notable_settings(settings: Any) -> dict[str, Any]:
    """Return the settings that determine weight shapes or differ from their default, without None values."""
    fixed, default = shapes(type(settings)), type(settings)()
    values = {name: getattr(settings, name) for name in get_field_specs(type(settings))}
    return {
        name: value
        for name, value in values.items()
        if value is not None and (name in fixed or name == "name" or value != getattr(default, name))
    }


def drop_neutral(settings: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that cannot change the result of a run."""
    neutral = {name for name, spec in get_field_specs(settings).items() if spec.neutral}
    return {name: value for name, value in values.items() if name not in neutral}


def _find_enumeration(annotation: Any) -> type[StrEnum] | None:
    for part in _get_members(annotation):
        if isinstance(part, type) and issubclass(part, StrEnum):
            return part
    return None


def _get_members(annotation: Any) -> tuple[Any, ...]:
    """Return the member types of a union annotation, or a tuple with the annotation if it is not a union."""
    is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    return typing.get_args(annotation) if is_union else (annotation,)
