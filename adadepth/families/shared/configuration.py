"""Models whose configuration is one of transformers' own, under trainers that gather outputs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedConfig, PreTrainedModel

from adadepth.errors import ConfigError, nearest
from adadepth.families.loading import check_model_type, describe_place, read_stored_config
from adadepth.families.shared.convert import auto_map, write_module
from adadepth.settings.declaration import MISSING, Declared, choices, declared, field_with, in_words

_KEY = "keys_to_ignore_at_inference"


# Fields of other models -> values with which these compute as if there were no such field.
_MEANINGS: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "rope_scaling": (),
    "rope_parameters": (),
    "partial_rotary_factor": (1.0,),
    "sliding_window": (),
    "use_sliding_window": (False,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_qk_norm": (False,),
    "clip_qkv": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
}


class WithStockConfig(PreTrainedModel):
    """Tells stock trainers to keep the logits alone, and nobody else: the checkpoint stays transformers' own."""

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        setattr(self.config, _KEY, ["trace", "loss_parts"])

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, and the configuration as it was given."""
        told = vars(self.config).pop(_KEY, None)
        try:
            return super().save_pretrained(*args, **kwargs)
        finally:
            if told is not None:
                setattr(self.config, _KEY, told)


# Fields of `StepwiseOutput` that stock trainers cannot gather, or that nobody asked for: they keep the logits.
BESIDE_LOGITS = [
    "trace", "loss_parts", "step_logits", "halting_logits", "halting_probabilities", "exit_steps", "posterior", "prior",
]  # fmt: skip


class FamilyConfig(PreTrainedConfig):
    """A configuration whose fields are the settings of its family, and what only a model has besides.

    `class AlbertActConfig(AlbertShape, settings=AlbertActSettings)` gives it a field for every setting that is one of a
    model (`in_model`), with the default that a configuration file without it means (`hub`), and their family's name as
    `model_type`. A type that the class body states is kept, and so is a default; what only a model has is declared
    there with `setting`, too. The docstring gets a list of all of them.
    """

    settings_class: ClassVar[type]

    def __init_subclass__(cls, settings: type | None = None, **kwargs: Any) -> None:
        if settings is not None:
            cls.settings_class = settings
            if (name := getattr(settings, "name", MISSING)) != MISSING:
                cls.model_type = name
            _add_fields(cls, settings)
        super().__init_subclass__(**kwargs)
        cls.__doc__ = _documented(cls)

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if settings := getattr(type(self), "settings_class", None):
            check_values(self, settings)

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save it, with the file by which transformers finds the model's classes where this package is not imported."""
        self.auto_map = auto_map(self.model_type)
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        write_module(folder)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; of another type of model, only those whose weights the family can start from.

        Raises:
            CheckpointError: In one line, of any other type.
        """
        stored = read_stored_config(pretrained_model_name_or_path, kwargs)
        check_model_type(cls, describe_place(pretrained_model_name_or_path), stored, starts=True)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers.

        Raises:
            ConfigError: If it has a field by which other models compute something else, and this one does not read it.
        """
        check_unread_fields(cls, config_dict)
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Do nothing: what is saved names this package, and transformers would copy the class's module beside it."""


def check_unread_fields(config_class: type[PreTrainedConfig], stored: Mapping[str, Any]) -> None:
    """Refuse a field of `_MEANINGS` that a configuration does not have, with a value that changes the computation.

    Raises:
        ConfigError: Naming the first such field, its value, and those that change nothing.
    """
    known = {field.name for field in dataclasses.fields(config_class)}
    for name, neutral in _MEANINGS.items():
        if name in known or name not in stored or stored[name] in (None, *neutral):
            continue
        value = stored[name]
        if isinstance(value, dict) and value.get("rope_type", value.get("type")) == "default":
            continue
        allowed = " or ".join(map(str, [*neutral, None]))
        raise ConfigError(f"{name}={value!r}: a {config_class.model_type} computes as with {allowed}, and nothing else")


def check_values(config: PreTrainedConfig, settings: type) -> None:
    """Refuse a value that is none of a setting's choices or out of its range.

    Raises:
        ConfigError: Naming the first such field, its value, what is allowed and the nearest match.
    """
    for name, allowed in choices(settings).items():
        value = getattr(config, name, None)
        if value is not None and value not in allowed:
            raise ConfigError(f"{name}={value!r} must be one of {', '.join(allowed)}{nearest(value, allowed)}")
    for name, about in declared(type(config)).items():
        value = getattr(config, name)
        if about.allowed is not None and value is not None and not about.allowed.test(value):
            raise ConfigError(f"{name}={value} must be {about.allowed.words}")


def check_field_names(config_class: type[PreTrainedConfig], names: Iterable[str]) -> None:
    """Refuse what is not a field; the configuration itself would store it without a word.

    Raises:
        ConfigError: Naming the first that is not, and its nearest match.
    """
    known = [*(field.name for field in dataclasses.fields(config_class)), "num_labels"]
    for name in names:
        if name not in known:
            raise ConfigError(f"{name}: {config_class.__name__} has no such field{nearest(name, known)}")


def _add_fields(config_class: type, settings: type) -> None:
    """Write the settings into the class body, before dataclass and strict read it."""
    own = inspect.get_annotations(config_class)
    hints, added = typing.get_type_hints(settings), {}
    for field in dataclasses.fields(settings):
        about: Declared | None = declared(settings).get(field.name)
        if about is None or not about.in_model or field.name in vars(config_class):
            continue
        added[field.name] = _stored_type(hints[field.name], about)
        setattr(config_class, field.name, field_with(_stored_default(field, about), about))
    config_class.__annotations__ = {**added, **own}


def _stored_default(field: dataclasses.Field[Any], about: Declared) -> Any:
    if about.differs_on_hub:
        return about.hub
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return str(default) if isinstance(default, StrEnum) else default


def _documented(config_class: type) -> str:
    """The class's own docstring, and a paragraph for every field that is declared."""
    options = choices(settings) if (settings := getattr(config_class, "settings_class", None)) else {}
    wrap = functools.partial(textwrap.fill, width=116, initial_indent=" " * 4, subsequent_indent=" " * 8)
    fields = [
        wrap(f"{name}: {' '.join(filter(None, (f'{in_words(about, options.get(name, ()))}.', about.more)))}")
        for name, about in declared(config_class).items()
    ]
    return "\n".join([inspect.cleandoc(config_class.__doc__ or ""), "", "Attributes:", *fields])


def _stored_type(annotation: Any, about: Declared) -> Any:
    """The type of a setting as JSON keeps it; where a file without it means something, it never means nothing."""
    found = _json_type(annotation)
    if not about.differs_on_hub:
        return found
    if about.hub is None:
        return found | None
    kept = [part for part in typing.get_args(found) if part is not types.NoneType]
    return functools.reduce(operator.or_, kept) if isinstance(found, types.UnionType) else found


def _json_type(annotation: Any) -> Any:
    """Choices are strings, and a number may have lost its point."""
    if isinstance(annotation, types.UnionType):
        return functools.reduce(operator.or_, map(_json_type, typing.get_args(annotation)))
    if typing.get_origin(annotation) is list:
        return types.GenericAlias(list, (_json_type(*typing.get_args(annotation)),))
    if annotation is float:
        return int | float
    return str if isinstance(annotation, type) and issubclass(annotation, StrEnum) else annotation
