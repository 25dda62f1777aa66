"""Base class of model configurations, with one field per setting of the family, and validation of field values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedConfig, PreTrainedModel

from adadepth.config.declaration import (
    MISSING,
    choices,
    find_excessive_counts,
    fits_64_bits,
    format_help,
    format_value,
    get_field_specs,
    make_field,
)
from adadepth.errors import ConfigError, nearest
from adadepth.halting.exit_rules import ExitRule, check_fitted, parse_rule
from adadepth.models.loading import check_model_type, describe_place, read_stored_config
from adadepth.models.registry import families

_KEY = "keys_to_ignore_at_inference"


# Fields of other models -> values with which these compute as without the field.
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


# Module saved with models that imports this package. This package never runs it. If the package has not been imported,
# transformers reports that the model has custom code, and runs the module if the user trusts it.
MODULE = "modeling_adadepth"
_CODE = '''"""Imports the classes of this model from the package adadepth."""

try:
    import adadepth
except ImportError as error:
    raise ImportError(
        "this model needs the package adadepth; install it from a clone or a wheel, then `import adadepth`"
    ) from error


def __getattr__(name):
    return getattr(adadepth, name)
'''


def auto_map(model_type: str) -> dict[str, str]:
    """Return the `auto_map` of a configuration: the model class for each Auto class of transformers."""
    spec = families()[model_type]
    classes = {"AutoConfig": spec.config, **spec.auto_classes()}
    return {auto: f"{MODULE}.{importer().__name__}" for auto, importer in classes.items()}


def write_module(folder: Path) -> None:
    """Write a small Python module into a model folder that makes transformers import this package."""
    (folder / f"{MODULE}.py").write_text(_CODE, encoding="utf-8")


class WithStockConfig(PreTrainedModel):
    """Mixin for models that use and save a configuration class of transformers unchanged.

    transformers' `Trainer` gathers only the logits of its output.
    """

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        setattr(self.config, _KEY, ["trace", "loss_parts"])

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """Save the model as transformers does, with its original configuration."""
        ignored = vars(self.config).pop(_KEY, None)
        try:
            return super().save_pretrained(*args, **kwargs)
        finally:
            if ignored is not None:
                setattr(self.config, _KEY, ignored)


# Fields of `StepwiseOutput` that stock trainers cannot gather or do not need beside the logits.
BESIDE_LOGITS = [
    "trace", "loss_parts", "step_logits", "halting_logits", "halting_probabilities", "exit_steps", "posterior", "prior",
]  # fmt: skip


class FamilyConfig(PreTrainedConfig):
    """Base class of model configurations, with one field per setting of the model family.

    For example, `class AlbertActConfig(AlbertShape, settings=AlbertActSettings)` has a field for every setting that
    belongs to a model (`in_model`). A field has the JSON form of the setting: choices are strings, and floats may be
    integers. The default is the value that applies to a file without the field (`hub`). Allowed values and descriptions
    are those of the setting. Fields that only a model has are declared in the class with `setting`. The `model_type` is
    the name of the family.

    Raises:
        TypeError: If a class has no field for a setting.
    """

    settings_class: ClassVar[type]
    parsed_exit_rule: ClassVar[ExitRule | None]  # of an instance, if it has the field `exit_rule`

    def __init_subclass__(cls, settings: type | None = None, **kwargs: Any) -> None:
        if settings is not None:
            cls.settings_class = settings
            if (name := getattr(settings, "name", MISSING)) != MISSING:
                cls.model_type = name
            _describe_fields(cls, settings)
        super().__init_subclass__(**kwargs)
        cls.__doc__ = _build_docstring(cls)

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if settings := getattr(type(self), "settings_class", None):
            check_values(self, settings)

    def __setattr__(self, key: str, value: Any) -> None:
        """Set a field. An exit rule is parsed here, because a new text would compile a model again."""
        super().__setattr__(key, value)
        if key == "exit_rule":
            parsed = None if value is None else parse_rule(value)
            if parsed is not None:
                check_fitted(parsed)
            super().__setattr__("parsed_exit_rule", parsed)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in JSON form, as transformers does."""
        fields = super().to_dict()
        fields.pop("parsed_exit_rule", None)
        return fields

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save the configuration, with a module through which transformers can import this package's classes."""
        self.auto_map = auto_map(self.model_type)
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        write_module(folder)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a configuration of this model type, or of another type from which weights can be initialised.

        Raises:
            CheckpointError: If the model type is another one.
        """
        stored = read_stored_config(pretrained_model_name_or_path, kwargs)
        check_model_type(cls, describe_place(pretrained_model_name_or_path), stored, starts=True)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration from a dictionary, as in transformers.

        Raises:
            ConfigError: If the dictionary has a field that this configuration ignores although it changes the
                computation of other models.
        """
        check_unread_fields(cls, config_dict)
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Do nothing, because saved files already name this package, and transformers would copy the class's module."""


def check_unread_fields(config_class: type[PreTrainedConfig], stored: Mapping[str, Any]) -> None:
    """Raise an error if a value would change the computation in other models but is not supported by this one.

    Raises:
        ConfigError: Names the first such field, its value, and the values that change nothing.
    """
    fields = {field.name for field in dataclasses.fields(config_class)}
    for name, neutral in _MEANINGS.items():
        if name in fields or name not in stored or stored[name] in (None, *neutral):
            continue
        value = stored[name]
        if isinstance(value, dict) and value.get("rope_type", value.get("type")) == "default":
            continue
        allowed = " or ".join(map(str, [*neutral, None]))
        raise ConfigError(f"{name}={value!r}: a {config_class.model_type} supports only {allowed}")


def check_values(config: PreTrainedConfig, settings: type) -> None:
    """Raise an error if a setting has a value that is not allowed.

    Raises:
        ConfigError: Names the first such field, its value, the allowed values and the nearest match.
    """
    for name, allowed in choices(settings).items():
        value = getattr(config, name, None)
        if value is not None and value not in allowed:
            raise ConfigError(f"{name}={value!r} must be one of {', '.join(allowed)}{nearest(value, allowed)}")
    for name, setting in get_field_specs(type(config)).items():
        value = getattr(config, name)
        if not fits_64_bits(value):
            raise ConfigError(f"{name}={format_value(value)}: must be an integer of 64 bits")
        if setting.allowed is not None and value is not None and not setting.allowed.test(value):
            raise ConfigError(f"{name}={value} must be {setting.allowed.words}")
    for problem in find_excessive_counts(config):
        raise ConfigError(problem)


def check_field_names(config_class: type[PreTrainedConfig], names: Iterable[str]) -> None:
    """Raise an error for names that are not configuration fields, which transformers would store silently.

    Raises:
        ConfigError: Names the first unknown name and its nearest match.
    """
    fields = [*(field.name for field in dataclasses.fields(config_class)), "num_labels"]
    for name in names:
        if name not in fields:
            raise ConfigError(f"{name}: {config_class.__name__} has no such field{nearest(name, fields)}")


def _describe_fields(config_class: type, settings: type) -> None:
    """Add the settings of a model family to a configuration class as fields."""
    bases = filter(dataclasses.is_dataclass, reversed(config_class.__mro__[1:]))  # it is no dataclass itself yet
    inherited = {field.name: field for base in bases for field in dataclasses.fields(base)}
    annotations = inspect.get_annotations(config_class, eval_str=True)
    declarations = {name: spec for name, spec in get_field_specs(settings).items() if spec.in_model}
    if missing := [name for name in declarations if name not in annotations and name not in inherited]:
        raise TypeError(f"{config_class.__name__}: lacks {', '.join(missing)}, which {settings.__name__} declares")
    for name, spec in declarations.items():
        if name in annotations:
            default = vars(config_class)[name]
        else:
            annotations[name], default = inherited[name].type, _default(inherited[name])
        setattr(config_class, name, make_field(default, spec))
    config_class.__annotations__ = annotations


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _build_docstring(config_class: type) -> str:
    """Return the docstring of a configuration class, extended by the description of every field."""
    options = choices(settings) if (settings := getattr(config_class, "settings_class", None)) else {}
    wrap = functools.partial(
        textwrap.fill, width=116, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False
    )
    fields = [
        wrap(f"{name}: {' '.join(filter(None, (f'{format_help(spec, options.get(name, ()))}.', spec.more)))}")
        for name, spec in get_field_specs(config_class).items()
    ]
    return "\n".join([inspect.cleandoc(config_class.__doc__ or ""), "", "Attributes:", *fields])
