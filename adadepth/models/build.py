"""From settings to a model: fresh, from pretrained weights, or from a run's checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForPreTraining, PreTrainedConfig, PreTrainedModel

from adadepth.config import AlbertActModelConfig, ModelConfig
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.albert_act.configuration import AlbertActConfig
from adadepth.models.convert import convert_reference_state_dict

# Settings that fix the shape or the meaning of weights: they cannot differ from those the weights were made with.
_SHAPES = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
_NOT_IN_MODEL = ("name", "pretrained", "attn_implementation")


def build_model(settings: ModelConfig, vocab_size: int) -> PreTrainedModel:
    """The pretraining model that the settings describe, with fresh or pretrained weights.

    Args:
        settings: The `model` group. With `pretrained` the weights come from there and everything that does not change
            their shapes (depth, penalty, dropout, halting switches) from the settings.
        vocab_size: Size of the tokenizer, when the settings leave it open.

    Raises:
        ConfigError: If the settings contradict the tokenizer or the pretrained weights.
        CheckpointError: If the pretrained weights are missing or of another family.
    """
    assert isinstance(settings, AlbertActModelConfig), "the only family of pretraining models"
    if settings.vocab_size is not None and settings.vocab_size < vocab_size:
        raise ConfigError(f"model.vocab_size={settings.vocab_size}: the tokenizer has {vocab_size} pieces")
    fields = {name: value for name, value in dataclasses.asdict(settings).items() if name not in _NOT_IN_MODEL}
    fields["vocab_size"] = settings.vocab_size or vocab_size
    config = AlbertActConfig(**{name: getattr(value, "value", value) for name, value in fields.items()})
    attention = {"attn_implementation": str(settings.attn_implementation)} if settings.attn_implementation else {}
    try:
        if settings.pretrained is None:
            return AutoModelForPreTraining.from_config(config, **attention)
        source = read_config("model.pretrained", settings.pretrained)
        _check_shapes(settings.pretrained, source, config)
        return _load_weights(settings.pretrained, source, config, attention)
    except (ImportError, KeyError) as error:
        raise ConfigError(f"model.attn_implementation={settings.attn_implementation}: {error}") from error


def load_model(path: str, settings: ModelConfig, overrides: Iterable[str]) -> PreTrainedModel:
    """The model of a checkpoint, as it was trained but for what the user sets on top.

    Args:
        path: A folder or hub id.
        settings: The `model` group.
        overrides: Names of the settings that the user gave explicitly; the others are the checkpoint's own.

    Raises:
        ConfigError: If an override would change the shape of a weight.
        CheckpointError: If there is no ACT-ALBERT at the path.
    """
    config = read_config("checkpoint", path)
    if config.model_type != AlbertActConfig.model_type:
        raise CheckpointError(f"checkpoint={path}: holds a model of type {config.model_type}, not albert_act")
    attention: dict[str, str] = {}
    for name in overrides:
        value = getattr(settings, name)
        if name in _SHAPES and value is not None and getattr(config, name) != value:
            raise ConfigError(f"model.{name}={value}: the checkpoint was trained with {getattr(config, name)}")
        if name == "attn_implementation" and value is not None:
            attention = {name: str(value)}
        elif name not in _NOT_IN_MODEL and value is not None:
            setattr(config, name, getattr(value, "value", value))
    return AutoModelForPreTraining.from_pretrained(path, config=config, **attention)


def read_config(key: str, path: str) -> PreTrainedConfig:
    """The configuration of a checkpoint; `key` names the setting in the error."""
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        what = "a folder without a model" if Path(path).is_dir() else "neither a folder nor a model that can be fetched"
        raise CheckpointError(f"{key}={path}: {what} ({str(error).splitlines()[0]})") from error


def _check_shapes(path: str, source: PreTrainedConfig, config: AlbertActConfig) -> None:
    if source.model_type not in ("albert", AlbertActConfig.model_type):
        raise CheckpointError(f"model.pretrained={path}: holds {source.model_type}, not albert_act or albert")
    differing = [name for name in _SHAPES if getattr(source, name) != getattr(config, name)]
    if differing:
        listed = "; ".join(f"model.{n}={getattr(config, n)} but {getattr(source, n)} there" for n in differing)
        raise ConfigError(f"model.pretrained={path}: {listed}")


def _load_weights(
    path: str, source: PreTrainedConfig, config: AlbertActConfig, attention: dict[str, str]
) -> PreTrainedModel:
    if source.model_type == AlbertActConfig.model_type:
        return AutoModelForPreTraining.from_pretrained(path, config=config, **attention)
    albert = AutoModelForPreTraining.from_pretrained(path, dtype=torch.float32)
    model: Any = AutoModelForPreTraining.from_config(config, **attention)
    model.load_state_dict(convert_reference_state_dict(AlbertActConfig.model_type, albert.state_dict()), strict=False)
    model.tie_weights()
    return model
