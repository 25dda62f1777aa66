"""Configurations of networks of transformers that a family builds its model around.

The family's configuration has the type `base` and the sizes of a new network, and `base_config` for any other.
"""

from __future__ import annotations

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from adadepth.config.declaration import setting
from adadepth.errors import ConfigError, nearest
from adadepth.models.shared.configuration import BESIDE_LOGITS, FamilyConfig
from adadepth.models.shared.network_settings import NetworkSettings

# Sizes of a network that every type has, and those that a type may lack.
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
OPTIONAL_SIZES = (
    "embedding_size",
    "num_key_value_heads",
    "max_position_embeddings",
    "tie_word_embeddings",
    "initializer_range",
)


@strict
class NetworkConfig(FamilyConfig, settings=NetworkSettings):
    """The configuration of a model around a network of transformers, which is described by its own configuration."""

    keys_to_ignore_at_inference: ClassVar[list[str]] = [*BESIDE_LOGITS, "cache"]
    sub_configs: ClassVar = {"base_config": AutoConfig}

    # The settings of `NetworkSettings`, which documents them, with the values of a file that lacks them.
    base: str = "llama"
    vocab_size: int = 32000
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    intermediate_size: int = 512
    max_position_embeddings: int | None = 512
    tie_word_embeddings: bool | None = None
    initializer_range: int | float | None = None
    dropout: int | float | None = None

    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    base_config: dict | PreTrainedConfig | None = setting(
        None, "of the network of transformers; None: one of type `base` with these sizes", shape=True
    )

    def __post_init__(self, **kwargs: object) -> None:
        if isinstance(self.base_config, dict):
            self.base_config = AutoConfig.for_model(**self.base_config)
        elif self.base_config is None:
            self.base_config = build_network_config(self)
        copy_sizes(self, self.base_config)
        if self.dropout is not None:
            set_dropout(self.base_config, self.dropout)
        super().__post_init__(**kwargs)


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


def set_dropout(network: PreTrainedConfig, probability: float) -> None:
    """Set every probability of dropout of a network and of its head.

    Raises:
        ConfigError: If networks of this type have no dropout.
    """
    names = [name for name in network.to_dict() if "dropout" in name or name.endswith("pdrop")]
    if not names:
        raise ConfigError(f"dropout={probability}: networks of type {network.model_type} have no dropout")
    for name in names:
        setattr(network, name, probability)
