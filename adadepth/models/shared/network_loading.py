"""Models around pretrained networks of transformers: their configuration from settings, and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from adadepth.config import ModelConfig
from adadepth.config.declaration import get_field_specs
from adadepth.errors import ConfigError
from adadepth.models.folder import is_weightless
from adadepth.models.loading import allow_new_weights, refuse_mismatched, refuse_missing, warn_about_new_weights
from adadepth.models.shared.network_configuration import OPTIONAL_SIZES, SIZES
from adadepth.models.shared.network_model import split_model
from adadepth.runtime.hub_access import silence_transformers


def list_chosen_fields(settings: ModelConfig) -> dict[str, Any]:
    """Return the fields of a model's configuration that the settings give, the type of the network excepted."""
    values = {name: getattr(settings, name) for name, spec in get_field_specs(type(settings)).items() if spec.in_model}
    chosen = {name: getattr(value, "value", value) for name, value in values.items() if value is not None}
    del chosen["base"]
    return chosen


def build_adopted_config(
    config_class: Any,
    path: str,
    chosen: Mapping[str, Any],
    source: PreTrainedConfig,
    vocab_size: int | None,
    fields: Mapping[str, Any],
) -> Any:
    """Build the configuration of a model around a pretrained network, or around its first layers.

    Args:
        config_class: Class of the configuration.
        path: Folder or hub id of the network.
        chosen: Fields that the settings give; see `list_chosen_fields`.
        source: Configuration of the network.
        vocab_size: Size of the tokenizer.
        fields: Fields that the data decide.

    Raises:
        ConfigError: If a setting contradicts the network, or the tokenizer has more pieces.
    """
    text, options = source.get_text_config(), dict(chosen)
    if 0 < (layers := chosen.get("num_hidden_layers", 0)) < text.num_hidden_layers:
        text = _truncate(text, layers)
    for name in [name for name in options if name in (*SIZES, *OPTIONAL_SIZES)]:
        if (value := options.pop(name)) != getattr(text, name, None):
            raise ConfigError(f"model.pretrained={path}: model.{name}={value} but {getattr(text, name, None)} there")
    if vocab_size is not None and vocab_size > text.vocab_size:
        raise ConfigError(f"model.pretrained={path}: it has {text.vocab_size} pieces, the tokenizer {vocab_size}")
    special = {name: getattr(text, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    return config_class(**{**special, **options, **fields, "base_config": text.to_dict()})


def _truncate(network: PreTrainedConfig, layers: int) -> PreTrainedConfig:
    """Return the configuration of the first layers of a network, with one entry each in lists by layer."""
    fields = network.to_dict()
    by_layer = {
        name: value[:layers]
        for name, value in fields.items()
        if "layer" in name and isinstance(value, list) and len(value) == network.num_hidden_layers
    }
    return type(network).from_dict({**fields, **by_layer, "num_hidden_layers": layers})


class AdoptedModel(NamedTuple):
    """A model around a pretrained network.

    Attributes:
        model: The model.
        logits: The network's own logits for some tokens; None: no weights are loaded, see `is_weightless`.
        new_weights: Names of the weights of the head that the network does not have.
    """

    model: Any
    logits: Tensor | None
    new_weights: frozenset[str]


def load_adopted_model(model_class: Any, config: Any, path: str, implementation: Any, ids: Tensor) -> AdoptedModel:
    """Load a model around a pretrained network.

    Its head is the network's own if it has one of this kind and these sizes, else a new one. Weights that the network
    does not have are new.

    Args:
        model_class: Class of the model, a `NetworkModel`.
        config: Its configuration.
        path: Folder or hub id of the network.
        implementation: Implementation of attention; None: the best that torch offers.
        ids: Tokens, (B, T).

    Raises:
        CheckpointError: If weights of the network are missing.
    """
    attention = {} if implementation is None else {"attn_implementation": str(implementation)}
    building = {"dtype": torch.float32, **attention}
    if is_weightless():
        return AdoptedModel(model_class._from_config(config, **building), None, frozenset())
    stock, new = load_stock_model(model_class, config, path)
    warn_about_new_weights(f"model.pretrained={path}", new)
    with torch.no_grad():
        logits = stock.eval()(ids).logits
    with allow_new_weights(), silence_transformers():
        model = model_class.from_pretrained(None, config=config, state_dict=rename_weights(stock), **building)
    model.name_or_path = config.name_or_path = path
    return AdoptedModel(model, logits, new)


def load_stock_model(model_class: Any, config: Any, path: str) -> tuple[Any, frozenset[str]]:
    """Load a pretrained network in float32 as the model of transformers for a task.

    Args:
        model_class: Class of a model around the network, a `NetworkModel`, which determines the task.
        config: Its configuration.
        path: Folder or hub id of the network.

    Returns:
        The model of transformers, and the names of the weights of its head that are new.

    Raises:
        CheckpointError: If weights of the network are missing.
    """
    stock_class: Any = model_class.find_stock_class(config)
    config.base_config.num_labels = config.num_labels
    options = {"dtype": torch.float32, "ignore_mismatched_sizes": True, "output_loading_info": True}
    with silence_transformers():  # heads are dropped on purpose
        stock, report = stock_class.from_pretrained(path, config=config.base_config, **options)
    prefix = f"{stock.base_model_prefix}."
    mismatched = [key for key in report["mismatched_keys"] if key[0].startswith(prefix)]
    refuse_mismatched(f"model.pretrained={path}", {"mismatched_keys": mismatched})
    new = {name for name in report["missing_keys"] if not name.startswith(prefix) or ".pooler." in name}
    new |= {name for name, *_ in report["mismatched_keys"]}  # of a head of another size
    refuse_missing(f"model.pretrained={path}", set(report["missing_keys"]) - new)
    return stock, frozenset(new)


def rename_weights(stock: Any) -> dict[str, Tensor]:
    """Return the weights of a model of transformers, which is split, by their names in a model around its network."""
    parts = split_model(stock)
    weights = {f"model.{name}": weight for name, weight in parts.base.state_dict().items()}
    return weights | {f"head.{name}": weight for name, weight in parts.head.state_dict().items()}
