"""One declaration of a setting: its default, one line of help, what is allowed, and what else is known of it.

Settings are fields of dataclasses made with `setting`. From them follow the schema that YAML files and the command line
fill, its checks and its help, and for a family of models the fields of its `PreTrainedConfig`. This module imports
neither torch nor transformers nor any other part of the package.
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

# How OmegaConf spells that a setting has no default. To import it from there would take a tenth of a second from
# everybody who uses a model, for which nothing else needs OmegaConf.
MISSING: Any = "???"


@dataclass(frozen=True)
class Allowed:
    """Which values a setting can have.

    Attributes:
        test: Whether a value, never None, is allowed.
        words: The same for people; continues "must be".
    """

    test: Callable[[Any], bool]
    words: str


def at_least(low: float) -> Allowed:
    """Finite numbers from `low` on."""
    return Allowed(lambda value: low <= value < math.inf, f"at least {low}")


def between(low: float, high: float) -> Allowed:
    """Numbers from `low` to `high`."""
    return Allowed(lambda value: low <= value <= high, f"from {low} to {high}")


POSITIVE = Allowed(lambda value: 0 < value < math.inf, "above 0")
SHARE = Allowed(lambda value: 0 <= value <= 1, "from 0 to 1")
OPEN_SHARE = Allowed(lambda value: 0 < value < 1, "above 0 and below 1")
BELOW_ONE = Allowed(lambda value: 0 <= value < 1, "at least 0 and below 1")
FINITE = Allowed(math.isfinite, "a finite number")
TEXTS = Allowed(lambda value: _is_of(value, str | list[str]), "a text or a list of texts")
FILES = Allowed(
    lambda value: _is_of(value, str | list[str] | dict[str, str | list[str]]),
    "a text, a list of texts, or a mapping of names to these",
)

_TYPES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "null"}
_SHOWN = 200  # characters of a value in a line of an error
_LONGEST = 4096  # characters of a path
_FREE_TEXTS = ("text", "symbols")  # settings that are text themselves and not the name of anything
_UNICODE = re.compile(r"[^\ud800-\udfff]*").fullmatch
_LINE = re.compile(rf"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{{0,{_LONGEST}}}").fullmatch

# The key of a field's metadata; and what stands for "nothing said" where None says something.
_KEY = "adadepth"
_UNSAID: Any = object()


@dataclass(frozen=True)
class Declared:
    """What is declared of one setting beside its type and default.

    Attributes:
        help: One line of what it means.
        more: Further sentences: an equation, its source, what each choice does. `--help` leaves them out.
        allowed: Its range; the choices of an enumeration follow from its type.
        shape: It fixes the shape or the meaning of weights, which are useless under another value.
        later: It came after the first models of its family were written: a model's folder may lack it.
        neutral: It changes speed or what is written, never the weights that a run arrives at.
        in_model: It is a field of the model's own configuration.
        hub: Its default there, where that differs from the one here: what a configuration file without it means.
        debug: Its value in a run of seconds, `debug=default`.
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
        """Whether a configuration file without this setting means something else than a YAML without it."""
        return self.hub is not _UNSAID

    @property
    def shrinks(self) -> bool:
        """Whether a run of seconds has its own value of this setting."""
        return self.debug is not _UNSAID


def setting(
    default: Any, help: str, allowed: Allowed | None = None, *, shape: bool = False, later: bool = False,
    neutral: bool = False, in_model: bool = True, hub: Any = _UNSAID, debug: Any = _UNSAID, more: str = "",
) -> Any:  # fmt: skip
    """Declare a field of a dataclass; see `Declared`.

    Args:
        default: Its default; a list or dictionary is copied for every instance, of a class an instance is made.
        help: One line, which begins in lower case and ends without a full stop.
        allowed: Its range, if it has one.
        shape: See `Declared`, as for the other arguments.
        later: See there.
        neutral: See there.
        in_model: See there.
        hub: See there.
        debug: See there.
        more: See there; whole sentences.
    """
    return field_with(default, Declared(help, more, allowed, shape, later, neutral, in_model, hub, debug))


def field_with(default: Any, about: Declared) -> Any:
    """A field of a dataclass of which this is declared; see `setting`."""
    metadata = {_KEY: about}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def declared(settings: Any) -> dict[str, Declared]:
    """What is declared of every field of a dataclass, by name, in order; fields made otherwise are left out."""
    fields = dataclasses.fields(settings) if dataclasses.is_dataclass(settings) else ()
    return {field.name: field.metadata[_KEY] for field in fields if _KEY in field.metadata}


def same_as(settings: type, name: str) -> Any:
    """A field that means what a setting of another dataclass does, under a name of its own."""
    field = next(field for field in dataclasses.fields(settings) if field.name == name)
    return field_with(field.default, field.metadata[_KEY])


def in_words(about: Declared, options: Collection[str] = ()) -> str:
    """One line of what a setting means and can be.

    Args:
        about: What is declared of it.
        options: Its choices, from `choices`.
    """
    parts = (
        about.help,
        f"one of {', '.join(options)}" if options else "",
        about.allowed.words if about.allowed else "",
    )
    return "; ".join(part for part in parts if part)


def misfits(settings: Any, prefix: str = "") -> Iterator[str]:
    """Yield a line for every setting whose value is not of its type, or is a text that nothing can be called.

    A configuration's lists and mappings can hold anything at any depth; whatever else reads them may trust their types
    once this has found nothing.
    """
    hints = typing.get_type_hints(type(settings))
    for name, about in declared(type(settings)).items():
        key, value = prefix + name, getattr(settings, name)
        if dataclasses.is_dataclass(hints[name]) and isinstance(value, hints[name]):
            yield from misfits(value, f"{key}.")
        elif not _is_of(value, hints[name]):
            yield f"{key}={shown(value)}: must be {_type_in_words(hints[name])}"
        elif hints[name] is Any and about.allowed and value is not None and not about.allowed.test(value):
            yield f"{key}={shown(value)}: must be {about.allowed.words}"
        elif not all(map(_UNICODE if name in _FREE_TEXTS else _LINE, _texts(value))):
            of_line = f"a line of at most {_LONGEST} characters without control characters"
            yield f"{key}={shown(value)}: must be {'text in Unicode' if name in _FREE_TEXTS else of_line}"


def shown(value: Any) -> str:
    """A value in a line of an error, however long it is."""
    text = value if isinstance(value, str) else str(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 4 :]}"


def out_of_range(settings: Any, prefix: str = "") -> Iterator[str]:
    """Yield a line for every setting of a dataclass, and of those inside it, whose value is not allowed."""
    for name, about in declared(type(settings)).items():
        key, value = prefix + name, getattr(settings, name)
        if dataclasses.is_dataclass(value):
            yield from out_of_range(value, f"{key}.")
        elif not _fits_64_bits(value):
            yield f"{key}={shown(value)}: must be an integer of 64 bits"
        elif about.allowed is not None and value is not None:
            if not about.allowed.test(value):
                yield f"{key}={shown(value)}: must be {about.allowed.words}"
        elif not all(math.isfinite(leaf) for leaf in _leaves(value) if isinstance(leaf, float)):
            yield f"{key}={shown(value)}: must be finite"


def _fits_64_bits(value: Any) -> bool:
    """Whether all integers in a value are such as tensors and other languages hold."""
    return all(-(2**63) <= leaf < 2**63 for leaf in _leaves(value) if isinstance(leaf, int))


def _leaves(value: Any) -> Iterator[Any]:
    """What is inside lists and mappings, names of entries too."""
    if isinstance(value, dict):
        yield from value
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _leaves(child)
    else:
        yield value


def _texts(value: Any) -> Iterator[str]:
    return (leaf for leaf in _leaves(value) if isinstance(leaf, str))


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type, and what it holds of the types that it should hold."""
    if kind is Any:
        return all(leaf is None or isinstance(leaf, str | int | float) for leaf in _leaves(value))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return isinstance(value, list) and all(_is_of(each, inner[0]) for each in value)
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else [(None, None)]
        return all(_is_of(name, inner[0]) and _is_of(each, inner[1]) for name, each in pairs)
    if len(members := _members(kind)) > 1:
        return any(_is_of(value, member) for member in members)
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _type_in_words(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return f"a list, each {_type_in_words(inner[0])}"
    if origin is dict:
        return f"a mapping, each value {_type_in_words(inner[1])}"
    if len(members := _members(kind)) > 1:
        return " or ".join(map(_type_in_words, members))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return f"one of {', '.join(kind)}"
    if dataclasses.is_dataclass(kind):
        return "a group of its own settings"
    return _TYPES.get(kind, "made of texts, numbers, lists and mappings")


def choices(settings: type) -> dict[str, tuple[str, ...]]:
    """The names that every setting of an enumerated type can have."""
    found = {name: _enumeration(annotation) for name, annotation in typing.get_type_hints(settings).items()}
    return {name: tuple(map(str, kind)) for name, kind in found.items() if kind is not None}


def shapes(settings: type) -> list[str]:
    """Names of the settings that fix the shape or the meaning of weights."""
    return [name for name, about in declared(settings).items() if about.shape]


def telling(settings: Any) -> dict[str, Any]:
    """What a run is told by: settings that fix a shape, and those that are not at their default; never what is None."""
    fixed, default = shapes(type(settings)), type(settings)()
    values = {name: getattr(settings, name) for name in declared(type(settings))}
    return {
        name: value
        for name, value in values.items()
        if value is not None and (name in fixed or name == "name" or value != getattr(default, name))
    }


def without_neutral(settings: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what cannot change a result."""
    neutral = {name for name, about in declared(settings).items() if about.neutral}
    return {name: value for name, value in values.items() if name not in neutral}


def _enumeration(annotation: Any) -> type[StrEnum] | None:
    for part in _members(annotation):
        if isinstance(part, type) and issubclass(part, StrEnum):
            return part
    return None


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    return typing.get_args(annotation) if is_union else (annotation,)
