"""Adalayers from its settings: a head on a pretrained transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from adadepth.declaration import declared
from adadepth.errors import ConfigError, UserError
from adadepth.families.adalayers.settings import AdaLayersSettings

_OF_THE_BASE = ("base_model", "base_revision")


def build_on_base(
    model_class: Any, settings: AdaLayersSettings, vocab_size: int | None, fields: Mapping[str, Any]
) -> PreTrainedModel:
    """A fresh head on the base that the settings name.

    Args:
        model_class: The head.
        settings: The `model` group.
        vocab_size: Size of the tokenizer, which the base must be able to read.
        fields: What the data decide.

    Raises:
        ConfigError: If a setting is wrong, or the tokenizer is larger than the base's.
        CheckpointError: If there is no such base.
    """
    names = [name for name, about in declared(type(settings)).items() if about.in_model and name not in _OF_THE_BASE]
    values = {name: getattr(getattr(settings, name), "value", getattr(settings, name)) for name in names}
    origin: dict[str, Any] = {"revision": settings.base_revision, "save_base": settings.save_base}
    if settings.attn_implementation is not None:
        origin["attn_implementation"] = str(settings.attn_implementation)
    try:
        model = model_class.from_base(settings.base_model, **origin, **values, **fields)
    except UserError as error:  # names a field of the model's configuration
        raise type(error)(f"model.{error}") from error
    pieces = model.config.base_config.vocab_size
    if vocab_size is not None and vocab_size > pieces:
        raise ConfigError(f"model.base_model={settings.base_model}: it has {pieces} pieces, the tokenizer {vocab_size}")
    return model
