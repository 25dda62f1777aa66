"""Configurations of networks of transformers that a family builds its model around.

The family's configuration has the type `base` and the sizes of a new network, and `base_config` for any other.
"""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from adadepth.errors import ConfigError, nearest

# Sizes of a network that every type has, and those that a type may lack.
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
OPTIONAL_SIZES = (
    "embedding_size",
    "num_key_value_heads",
    "max_position_embeddings",
    "tie_word_embeddings",
    "initializer_range",
)


def build_network_config(config: Any) -> PreTrainedConfig:
    """Build the configuration of a new network of transformers from the type and sizes of a family's configuration.

    Raises:
        ConfigError: If transformers has no such type, or the network has no such sizes.
    """
    if config.base not in CONFIG_MAPPING:
        raise ConfigError(f"base={config.base}: transformers has no such type{nearest(config.base, CONFIG_MAPPING)}")
    kind = CONFIG_MAPPING[config.base]
    sizes: dict[str, Any] = {name: getattr(config, name) for name in (*SIZES, "max_position_embeddings")}
    typed = {
        "embedding_size": getattr(config, "embedding_size", None) or config.hidden_size,
        "num_key_value_heads": config.num_key_value_heads or config.num_attention_heads,
        "head_dim": config.hidden_size // config.num_attention_heads,
    }
    sizes |= {name: value for name, value in typed.items() if hasattr(kind, name)}
    defaulted = ("tie_word_embeddings", "initializer_range")
    sizes |= {name: value for name in defaulted if (value := getattr(config, name)) is not None}
    tokens = {f"{name}_token_id": None for name in ("bos", "eos", "cls", "sep")}
    # The id of padding is not that of the type's own vocabulary; RoBERTa counts positions from it.
    return AutoConfig.for_model(config.base, **sizes, **tokens, pad_token_id=config.pad_token_id)


def copy_sizes(config: Any, network: PreTrainedConfig) -> None:
    """Set the type and sizes of a family's configuration to those of its network.

    Raises:
        ConfigError: If the network's configuration lacks a size.
    """
    config.base = network.model_type
    for name in SIZES:
        if not hasattr(network, name):
            raise ConfigError(f"base={network.model_type}: its configuration has no {name}")
        setattr(config, name, getattr(network, name))
    for name in OPTIONAL_SIZES:
        if hasattr(config, name):
            setattr(config, name, getattr(network, name, None))
