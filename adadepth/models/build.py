"""Construction of models from settings, with new weights, pretrained weights, or the checkpoint of a run."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from adadepth.config import ModelConfig
from adadepth.config.declaration import get_field_specs, shapes
from adadepth.config.kinds import PREDICTED, Problem
from adadepth.errors import CheckpointError, ConfigError
from adadepth.halting.exit_rules import parse_rule
from adadepth.models.auto import register_auto_classes
from adadepth.models.depth.engine import resolve_exit_rule
from adadepth.models.folder import convert_loading_errors, is_weightless, load_with_weights, read_config
from adadepth.models.loading import list_weight_names
from adadepth.models.memory_check import check_size
from adadepth.models.registry import families, family, join_alternatives
from adadepth.models.validation import check_model
from adadepth.runtime.hub_access import get_first_line, resolve_path

register_auto_classes()

logger = logging.getLogger(__name__)

_VOCABULARY_RATIO = 2  # a new network with a vocabulary this many times as large as the tokenizer gives a warning


def build_pretraining_model(settings: ModelConfig, vocab_size: int) -> PreTrainedModel:
    """Build a family's pretraining model from settings, with new or pretrained weights.

    Args:
        settings: Group `model`. If `pretrained` is set, the weights are loaded from it. Everything that does not change
            their shapes (depth, penalty, dropout, halting switches) still comes from the settings.
        vocab_size: Size of the tokenizer, used if the settings do not give a vocabulary size.

    Raises:
        ConfigError: If the settings contradict the tokenizer or the pretrained weights.
        CheckpointError: If the pretrained weights are missing or belong to another family.
    """
    return _build(pretraining_class(settings), settings, vocab_size, {})


def pretraining_class(settings: ModelConfig) -> type[PreTrainedModel]:
    """Return a model family's class for pretraining."""
    return family(settings.name).head("pretraining")


def classifier_class(settings: ModelConfig, problem: Problem) -> type[PreTrainedModel]:
    """Return a model family's class for a kind of labelled task, such as classification or tagging."""
    return family(settings.name).head(PREDICTED[problem].head)


def build_classifier(
    settings: ModelConfig, vocab_size: int | None, fields: Mapping[str, Any], problem: Problem = "classification"
) -> PreTrainedModel:
    """Build a model for a labelled task from settings, with new or pretrained weights.

    The task is classification, regression, tagging, question answering or multiple choice.

    Args:
        settings: Group `model`.
        vocab_size: Size of the tokenizer, or None for a model that reads vectors.
        fields: Fields of the configuration that the data determine: `id2label`, `problem_type`, or `input_size`.
        problem: Kind of task; see `RunData.problem`.
    """
    model_class = classifier_class(settings, problem)
    if build := family(settings.name).build:
        with _name_unknown_setting(settings):
            built = build()(model_class, settings, vocab_size, fields)
        check_model(built, settings.name)
        return built
    rule = getattr(settings, "exit_rule", None)
    with _prefix_setting("model.exit_rule"):
        parsed = None if rule is None else parse_rule(rule)
    model: Any = _build(model_class, settings, vocab_size, fields)
    if parsed is not None:
        with _prefix_setting("model.exit_rule"):
            resolve_exit_rule(model, parsed)
    return model


def build_language_model(
    settings: ModelConfig, vocab_size: int, gates: Mapping[str, Any] | None = None
) -> PreTrainedModel:
    """Build a language model from settings: a fixed architecture, or a supernet for architecture search.

    Args:
        settings: Group `model`.
        vocab_size: Size of the tokenizer.
        gates: Fields of the configuration that concern the supernet gates.
    """
    try:
        return _build(language_model_class(settings, settings), settings, vocab_size, gates or {})
    except ConfigError as error:  # names a field of the model's configuration
        message = str(error)
        raise ConfigError(message if message.startswith("model.") else f"model.{message}") from error


def load_language_model(path: str, settings: ModelConfig, overrides: Collection[str]) -> PreTrainedModel:
    """Load a language model from a checkpoint, either a fixed architecture or a supernet."""
    config = read_config("checkpoint", path)
    return load_model(path, language_model_class(settings, config), settings, overrides, config=config)


def language_model_class(settings: ModelConfig, described: ModelConfig | PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the class of a language model, or that of a supernet if no architecture is given.

    Args:
        settings: Settings of the model's family.
        described: Settings or configuration. If they contain no architecture, the class is that of the supernet.
    """
    spec = family(settings.name)
    return spec.head("search" if spec.searches(described) else "language_model")


def check_on_meta_device(settings: ModelConfig, head: str) -> None:
    """Validate the properties of a family's model on the meta device, before any data are prepared.

    The check uses the default vocabulary and classes of the configuration. A model that needs other values, or is built
    around another model (`Family.build`), is checked when it is built.

    Args:
        settings: Group `model`.
        head: Key of `Family.heads`.

    Raises:
        ConfigError: See `check_model`.
    """
    if family(settings.name).build is not None:
        return
    model_class: Any = family(settings.name).head(head)
    try:
        config = _build_config(model_class.config_class, settings, None, None, {})
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = model_class(config)
    except Exception:  # reported when the model is built
        return
    check_model(model, settings.name)


@contextmanager
def _prefix_setting(key: str) -> Iterator[None]:
    """Prefix errors raised within the `with` block with the name of the setting that caused them."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error


def _build(
    model_class: Any, settings: ModelConfig, vocab_size: int | None, fields: Mapping[str, Any]
) -> PreTrainedModel:
    source = None
    if settings.pretrained is not None:
        path = resolve_path("model.pretrained", settings.pretrained)
        settings, source = dataclasses.replace(settings, pretrained=path), read_config("model.pretrained", path)
    adopt = family(settings.name).adopts
    if source is not None and adopt is not None and source.model_type not in families():
        with _name_unknown_setting(settings), convert_loading_errors("model.pretrained", str(settings.pretrained)):
            return adopt()(model_class, settings, source, vocab_size, fields)
    config = _build_config(model_class.config_class, settings, source, vocab_size, fields)
    implementation = getattr(settings, "attn_implementation", None)
    # Published weights are often bfloat16, in which most updates of an optimiser are rounded away.
    options = {"dtype": torch.float32, **({"attn_implementation": str(implementation)} if implementation else {})}
    with _name_unknown_setting(settings):
        if source is None or is_weightless():
            if not is_weightless():
                check_size(model_class, config)
            model: PreTrainedModel = model_class._from_config(config, **options)
        else:
            model = _load_weights(model_class, str(settings.pretrained), source, config, options)
    check_model(model, settings.name)
    return model


@contextmanager
def _name_unknown_setting(settings: ModelConfig) -> Iterator[None]:
    """Make errors about unknown names or missing packages within the `with` block name the setting."""
    try:
        yield
    except (ImportError, KeyError) as error:
        values = {name: str(getattr(settings, name)) for name in get_field_specs(type(settings))}
        name = next((name for name, value in values.items() if (value,) == error.args), None)
        if name is None and isinstance(error, KeyError):
            raise ConfigError(
                f"model={settings.name}: the model cannot be built, because {error} is missing"
            ) from error
        name = name or "attn_implementation"
        raise ConfigError(f"model.{name}={values.get(name)}: {get_first_line(error)}") from error


def _build_config(
    config_class: Any,
    settings: ModelConfig,
    source: PreTrainedConfig | None,
    vocab_size: int | None,
    fields: Mapping[str, Any],
) -> PreTrainedConfig:
    """Build a model's configuration from its settings and from fields that depend on the data.

    Settings that are None come from the source. So do fields without a setting that determine shapes of weights, if the
    source is of the same family; `base_config` is one.
    """
    from_settings = {name: getattr(settings, name) for name in _list_model_settings(settings)}
    values = {name: value for name, value in from_settings.items() if value is not None}
    if source is not None:
        _check_source(config_class, settings, source, values, fields)
        stored_alone = shapes(config_class) if isinstance(source, config_class) else ()
        open_names = [name for name in (*from_settings, *stored_alone) if name not in values]
        values |= {name: getattr(source, name) for name in open_names if hasattr(source, name)}
    if vocab_size is not None:
        values.setdefault("vocab_size", vocab_size)
        if values["vocab_size"] < vocab_size:
            is_set = from_settings["vocab_size"]
            owner = "model.vocab_size" if is_set else f"model.pretrained={settings.pretrained}: vocab_size"
            raise ConfigError(f"{owner}={values['vocab_size']}: the tokenizer has {vocab_size} tokens")
        if from_settings["vocab_size"] is None and values["vocab_size"] != vocab_size:
            raise ConfigError(
                f"model.pretrained={settings.pretrained}: it has {values['vocab_size']} tokens, the tokenizer "
                f"{vocab_size}; give its tokenizer with tokenizer.path, or set "
                f"model.vocab_size={values['vocab_size']}"
            )
        if source is None and values["vocab_size"] > _VOCABULARY_RATIO * vocab_size:
            logger.warning(
                "model.vocab_size=%d: the tokenizer has only %d tokens; model.vocab_size=null takes its size",
                values["vocab_size"], vocab_size,
            )  # fmt: skip
    return config_class(**{name: getattr(value, "value", value) for name, value in {**values, **fields}.items()})


def _list_model_settings(settings: ModelConfig) -> list[str]:
    return [name for name, setting in get_field_specs(type(settings)).items() if setting.in_model]


def _check_source(
    config_class: Any,
    settings: ModelConfig,
    source: PreTrainedConfig,
    values: Mapping[str, Any],
    fields: Mapping[str, Any],
) -> None:
    """Check that pretrained weights have the family and sizes that the settings and the data require."""
    path, fixed = settings.pretrained, _list_shape_fields(config_class, settings)
    allowed = sorted({settings.name, *family(settings.name).starts_from})
    if source.model_type not in allowed:
        raise CheckpointError(
            f"model.pretrained={path}: contains a {source.model_type} model, but {join_alternatives(allowed)} is needed"
        )
    required = {f"model.{name}": (name, values[name]) for name in fixed if name in values}
    required |= {f"the data need {name}": (name, fields[name]) for name in fixed if name in fields}
    differing = {
        name: f"{label}={value}, but the pretrained model has {getattr(source, name)}"
        for label, (name, value) in required.items()
        if hasattr(source, name) and getattr(source, name) != value
    }
    if differing:
        advice = _advise_plain_network(settings, source, differing)
        raise ConfigError(f"model.pretrained={path}: {'; '.join(differing.values())}{advice}")


def _advise_plain_network(settings: ModelConfig, source: PreTrainedConfig, differing: Iterable[str]) -> str:
    """Return how to write the network of a model as a plain decoder, if settings differ that are not the network's.

    Args:
        settings: The `model` group.
        source: Configuration of the model.
        differing: Names of the settings.
    """
    base, network = getattr(source, "base", None), getattr(source, "base_config", None)
    is_decoder = any(name.endswith("ForCausalLM") for name in source.architectures or ())
    if not is_decoder or base not in family(settings.name).layouts or any(hasattr(network, name) for name in differing):
        return ""
    return (
        f"; first write its {base} alone: mode=export checkpoint={settings.pretrained} export.layout={base} "
        "export.drop_exits=true export.folder=FOLDER, then model.pretrained=FOLDER"
    )


def _list_shape_fields(config_class: type[PreTrainedConfig], settings: ModelConfig) -> list[str]:
    """Return the configuration fields that determine weight shapes, which transformers' classes do not declare."""
    return list(dict.fromkeys([*shapes(type(settings)), *shapes(config_class)]))


def _load_weights(
    model_class: Any, path: str, source: PreTrainedConfig, config: PreTrainedConfig, options: dict[str, Any]
) -> PreTrainedModel:
    if load_source := family(config.model_type).starts_from.get(source.model_type):
        with convert_loading_errors("model.pretrained", path):
            return load_source()(model_class, path, config, options)
    if source.model_type != model_class.config_class.model_type:
        with convert_loading_errors("model.pretrained", path):
            return model_class.from_pretrained(path, config=config, **options)
    return load_with_weights("model.pretrained", path, model_class, config, has=list_weight_names(source), **options)


def load_model(
    path: str,
    model_class: Any,
    settings: ModelConfig,
    overrides: Collection[str],
    *,
    config: PreTrainedConfig | None = None,
    only_encoder: bool = False,
) -> PreTrainedModel:
    """Load a model from a checkpoint with its stored settings, except those that the user overrides.

    Args:
        path: Folder or hub id.
        model_class: Class of the model.
        settings: Group `model`.
        overrides: Names of the settings that the user set explicitly.
        config: Configuration of the checkpoint, if it has already been read.
        only_encoder: Whether the class has no head, in which case the checkpoint's head is not read.

    Raises:
        ConfigError: If an override would change the shape of a weight.
        CheckpointError: If the path does not contain a complete model of that family.
    """
    config = config or read_config("checkpoint", path)
    config = _wrap_network(config, settings, overrides)
    expected = family(settings.name).config().model_type
    if expected and config.model_type != expected:
        specs = [
            spec for spec in families().values() if config.model_type in (spec.config().model_type, *spec.networks)
        ]
        advice = f"; add model={specs[0].option or specs[0].name}" if specs else ""
        raise CheckpointError(
            f"checkpoint={path}: contains a model of type {config.model_type}, not {expected}{advice}"
        )
    if "pretrained" in overrides and not getattr(config, "save_base", True):  # exits alone, whose network was moved
        config.base_config.name_or_path = str(settings.pretrained)
    fixed, in_model = _list_shape_fields(type(config), settings), _list_model_settings(settings)
    attention: dict[str, str] = {}
    for name in overrides:
        value = getattr(settings, name)
        value = getattr(value, "value", value)
        if name in fixed and value is not None and getattr(config, name) != value:
            raise ConfigError(f"model.{name}={value}: the checkpoint was trained with {getattr(config, name)}")
        if name == "attn_implementation" and value is not None:
            attention = {name: value}
        elif name in in_model and (value is not None or name == "exit_rule"):  # None: all units run all steps
            with _prefix_setting(f"model.{name}"):
                setattr(config, name, value)
    has = list_weight_names(config) if only_encoder else None
    with _name_unknown_setting(settings):
        model: Any = load_with_weights("checkpoint", path, model_class, config, has=has, **attention)
    if only_encoder:
        return model
    if "exit_rule" in overrides and config.exit_rule is not None:
        with _prefix_setting("model.exit_rule"):
            resolve_exit_rule(model, None)
    check_model(model, settings.name)
    return model


def _wrap_network(config: PreTrainedConfig, settings: ModelConfig, overrides: Collection[str]) -> PreTrainedConfig:
    """Return a family's configuration for a network of transformers that it can load, or else the same configuration.

    Settings of the command line that are not the network's own become fields.
    """
    spec, fields = family(settings.name), set(_list_model_settings(settings))
    if config.model_type not in spec.networks:
        return config
    values = {name: getattr(settings, name) for name in overrides if name in fields and not hasattr(config, name)}
    chosen = {name: getattr(value, "value", value) for name, value in values.items() if value is not None}
    try:
        wrapped = spec.config().from_dict(config.to_dict(), **chosen)
    except ConfigError as error:  # names a field
        raise ConfigError(f"model.{error}") from error
    return wrapped


def load_encoder(path: str, settings: ModelConfig, overrides: Collection[str]) -> Any:
    """Load the encoder of a checkpoint without a task head.

    Raises:
        ConfigError: If the family has no encoder class.
    """
    encoder = family(settings.name).encoder
    if encoder is None:
        raise ConfigError(f"model={settings.name}: does not return its hidden states after every update")
    return load_model(path, encoder(), settings, overrides, only_encoder=True)
