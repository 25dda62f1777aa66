"""Early-exit models of pretrained networks of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from adadepth.config.declaration import get_field_specs
from adadepth.errors import CheckpointError, ConfigError
from adadepth.models.early_exit.causal_lm import EarlyExitForCausalLM
from adadepth.models.early_exit.configuration import OPTIONAL_SIZES, SIZES, EarlyExitConfig
from adadepth.models.early_exit.family import EarlyExitSettings
from adadepth.models.early_exit.layers import split_model
from adadepth.models.early_exit.modeling import EarlyExitModel
from adadepth.models.folder import is_weightless, read_config
from adadepth.models.loading import allow_new_weights, refuse_mismatched, refuse_missing, warn_about_new_weights
from adadepth.runtime.hub_access import silence_transformers

_TOLERANCE = 1e-4  # of logits, relative to the largest
_COMPARED = 8  # tokens of the comparison


def add_exits(source: str, *, model_class: type[EarlyExitModel] = EarlyExitForCausalLM, **settings: Any) -> Any:
    """Build an early-exit model with the weights of a pretrained network of transformers, such as LayerSkip's.

    Args:
        source: Folder or hub id of the network.
        model_class: Class of the result.
        **settings: Fields of `EarlyExitSettings`, e.g. `exit_layers`. By default there is an exit after every layer,
            with the final norm and head of the network.

    Raises:
        ConfigError: If a setting contradicts the network.
        CheckpointError: If weights of the network are missing, or its layers are not all that it computes.
    """
    chosen = EarlyExitSettings(pretrained=source, **settings)
    return build_from_base(model_class, chosen, read_config("model.pretrained", source), None, {})


def build_from_base(
    model_class: type[EarlyExitModel],
    settings: EarlyExitSettings,
    source: PreTrainedConfig,
    vocab_size: int | None,
    fields: Mapping[str, Any],
) -> PreTrainedModel:
    """Make an early-exit model of `model.pretrained`, a network of transformers, by the settings.

    Its head is the network's own if it has one of this kind and these sizes, else a new one. Early exits begin as the
    last one.

    Args:
        model_class: The head.
        settings: The `model` group.
        source: Configuration of the network.
        vocab_size: Size of the tokenizer.
        fields: Fields of the configuration that the data decide.

    Raises:
        ConfigError: If a setting contradicts the network, or the tokenizer has more pieces.
        CheckpointError: If weights of the network are missing, or its layers are not all that it computes.
    """
    path, text = str(settings.pretrained), source.get_text_config()
    values = {name: getattr(settings, name) for name, spec in get_field_specs(type(settings)).items() if spec.in_model}
    chosen = {name: getattr(value, "value", value) for name, value in values.items() if value is not None}
    del chosen["base"]
    for name in [name for name in chosen if name in (*SIZES, *OPTIONAL_SIZES)]:
        if (value := chosen.pop(name)) != getattr(text, name, None):
            raise ConfigError(f"model.pretrained={path}: model.{name}={value} but {getattr(text, name, None)} there")
    if vocab_size is not None and vocab_size > text.vocab_size:
        raise ConfigError(f"model.pretrained={path}: it has {text.vocab_size} pieces, the tokenizer {vocab_size}")
    special = {name: getattr(text, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    config = EarlyExitConfig(**{**special, **chosen, **fields, "base_config": text.to_dict()})
    attention = (
        {} if settings.attn_implementation is None else {"attn_implementation": str(settings.attn_implementation)}
    )
    if is_weightless():
        return model_class._from_config(config, **attention)
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
    ids = torch.arange(_COMPARED).unsqueeze(0) % text.vocab_size
    with torch.no_grad():
        expected = stock.eval()(ids).logits
    parts = split_model(stock)
    weights = {f"model.{name}": weight for name, weight in parts.base.state_dict().items()}
    weights |= {f"head.{name}": weight for name, weight in parts.head.state_dict().items()}
    with allow_new_weights(), silence_transformers():
        model: Any = model_class.from_pretrained(None, config=config, state_dict=weights, **attention)
    model.copy_last_exit()
    with torch.no_grad():
        logits = model.eval()(ids, exit_rule=f"fixed:{model.max_updates}").logits
    worst = float((logits - expected).abs().max() / expected.abs().max())
    if not worst <= _TOLERANCE:
        raise CheckpointError(
            f"model.pretrained={path}: {config.base} computes more than its layers one after the other: the last exit "
            f"differs by {worst:.2g} of the largest value"
        )
    return model
