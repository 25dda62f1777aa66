"""Models around pretrained networks of transformers: their configuration from settings, and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def load_adopted_model(
    model_class: Any, config: Any, path: str, implementation: Any, ids: Tensor
) -> tuple[Any, Tensor | None]:
    """Load a model around a pretrained network, and return it with the network's own logits for some tokens.

    Its head is the network's own if it has one of this kind and these sizes, else a new one. Weights that the network
    does not have are new. The logits are None if no weights are loaded; see `is_weightless`.

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
        return model_class._from_config(config, **building), None
    stock_class: Any = model_class.find_stock_class(config)
    config.base_config.num_labels = config.num_labels
    options = {"dtype": torch.float32, "ignore_mismatched_sizes": True, "output_loading_info": True}
    with silence_transformers():  # heads are dropped on purpose
        stock, report = stock_class.from_pretrained(path, config=config.base_config, **options)
    prefix = f"{stock.base_model_prefix}."
    mismatched = [key for key in report["mismatched_keys"] if key[0].startswith(prefix)]
    refuse_mismatched(f"model.pretrained={path}", {"mismatched_keys": mismatched})
    new = {name for name in report["missing_keys"] if not name.startswith(prefix) or ".pooler." in name}
    refuse_missing(f"model.pretrained={path}", report["missing_keys"] - new)
    warn_about_new_weights(f"model.pretrained={path}", new)
    with torch.no_grad():
        logits = stock.eval()(ids).logits
    parts = split_model(stock)
    weights = {f"model.{name}": weight for name, weight in parts.base.state_dict().items()}
    weights |= {f"head.{name}": weight for name, weight in parts.head.state_dict().items()}
    with allow_new_weights(), silence_transformers():
        return model_class.from_pretrained(None, config=config, state_dict=weights, **building), logits
