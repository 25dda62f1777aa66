"""Routed models of pretrained networks of transformers (Router-Tuning, FlexiDepth)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from adadepth.models.folder import read_config
from adadepth.models.loading import allow_new_weights
from adadepth.models.registry import family
from adadepth.models.routed.configuration import RoutedConfig
from adadepth.models.routed.settings import RoutedSettings
from adadepth.models.shared.network_loading import build_adopted_config, list_chosen_fields, load_adopted_model
from adadepth.models.shared.network_model import NetworkModel
from adadepth.runtime.hub_access import silence_transformers


def adopt_network(
    model_class: Any,
    settings: RoutedSettings,
    source: PreTrainedConfig,
    vocab_size: int | None,
    fields: Mapping[str, Any],
) -> PreTrainedModel:
    """Make a routed model of `model.pretrained`, a network of transformers, by the settings.

    Args:
        model_class: The head.
        settings: The `model` group.
        source: Configuration of the network.
        vocab_size: Size of the tokenizer.
        fields: Fields of the configuration that the data decide.

    Raises:
        ConfigError: If a setting contradicts the network, or the tokenizer has more pieces.
        CheckpointError: If weights of the network are missing.
    """
    path = str(settings.pretrained)
    config = build_adopted_config(RoutedConfig, path, list_chosen_fields(settings), source, vocab_size, fields)
    model: PreTrainedModel = load_adopted_model(
        model_class, config, path, settings.attn_implementation, torch.zeros(1, 1, dtype=torch.long)
    )[0]
    return model


def load_network_and_head(model_class: Any, path: str, config: RoutedConfig, options: Mapping[str, Any]) -> Any:
    """Build a routed model with the network and the last head of a model of another family (`Family.starts_from`).

    Args:
        model_class: The head.
        path: Folder or hub id of the other model, a `NetworkModel`.
        config: Configuration of the routed model.
        options: `dtype`, and `attn_implementation` if it is set.

    Raises:
        CheckpointError: If weights are missing.
    """
    kind = next(kind for kind, importer in family(config.model_type).heads.items() if importer() is model_class)
    stored = read_config("model.pretrained", path)
    source: NetworkModel = family(stored.model_type).head(kind).from_pretrained(path, dtype=options["dtype"])
    config.base_config = source.config.base_config
    weights = {name: weight for name, weight in source.state_dict().items() if name.startswith(("model.", "head."))}
    with allow_new_weights(), silence_transformers():
        return model_class.from_pretrained(None, config=config, state_dict=weights, **options)
