"""Models whose configuration is one of transformers' own, under trainers that gather outputs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedConfig, PreTrainedModel

from adadepth.errors import ConfigError, nearest
from adadepth.families.loading import check_model_type, describe_place, read_stored_config
from adadepth.families.shared.convert import auto_map, write_module
from adadepth.settings.declaration import MISSING, choices, declared, field_with, in_words

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

    `class AlbertActConfig(AlbertShape, settings=AlbertActSettings)` has a field for every setting of a model
    (`in_model`), as JSON keeps it: choices are strings, a number may have lost its point, and the default is what a
    configuration file without the field means (`hub`). What is allowed, and what the docstring says of it, is the
    setting's; what only a model has is declared in the class with `setting`. Its `model_type` is the family's name.

    Raises:
        TypeError: If a class has no field for a setting.
    """

    settings_class: ClassVar[type]

    def __init_subclass__(cls, settings: type | None = None, **kwargs: Any) -> None:
        if settings is not None:
            cls.settings_class = settings
            if (name := getattr(settings, "name", MISSING)) != MISSING:
                cls.model_type = name
            _describe_fields(cls, settings)
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


def _describe_fields(config_class: type, settings: type) -> None:
    """Declare the fields of settings as these are, before dataclass and strict read the class."""
    inherited = {field.name: field for field in dataclasses.fields(config_class)}  # it is no dataclass itself yet
    own = inspect.get_annotations(config_class, eval_str=True)
    declarations = {name: about for name, about in declared(settings).items() if about.in_model}
    if missing := [name for name in declarations if name not in own and name not in inherited]:
        raise TypeError(f"{config_class.__name__}: lacks {', '.join(missing)}, as {settings.__name__} has them")
    for name, about in declarations.items():
        if name in own:
            default = vars(config_class)[name]
        else:
            own[name], default = inherited[name].type, _default(inherited[name])
        setattr(config_class, name, field_with(default, about))
    config_class.__annotations__ = own


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _documented(config_class: type) -> str:
    """The class's own docstring, and a paragraph for every field that is declared."""
    options = choices(settings) if (settings := getattr(config_class, "settings_class", None)) else {}
    wrap = functools.partial(textwrap.fill, width=116, initial_indent=" " * 4, subsequent_indent=" " * 8)
    fields = [
        wrap(f"{name}: {' '.join(filter(None, (f'{in_words(about, options.get(name, ()))}.', about.more)))}")
        for name, about in declared(config_class).items()
    ]
    return "\n".join([inspect.cleandoc(config_class.__doc__ or ""), "", "Attributes:", *fields])
