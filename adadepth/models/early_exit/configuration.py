"""The configuration of early-exit models."""

from __future__ import annotations

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from adadepth.config.declaration import setting
from adadepth.errors import ConfigError, nearest
from adadepth.halting.exit_rules import parse_rule
from adadepth.models.early_exit.cache import check_policy
from adadepth.models.early_exit.family import EarlyExitSettings
from adadepth.models.shared.configuration import BESIDE_LOGITS, FamilyConfig

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
class EarlyExitConfig(FamilyConfig, settings=EarlyExitSettings):
    """The configuration of an encoder or decoder of transformers whose layers can be left early."""

    keys_to_ignore_at_inference: ClassVar[list[str]] = [*BESIDE_LOGITS, "past_key_values", "hidden_states"]
    sub_configs: ClassVar = {"base_config": AutoConfig}

    # The settings of `EarlyExitSettings`, which documents them, with the values of a file that lacks them.
    base: str = "llama"
    vocab_size: int = 32000
    embedding_size: int | None = None
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    intermediate_size: int = 512
    max_position_embeddings: int | None = 512
    tie_word_embeddings: bool | None = None
    initializer_range: int | float | None = None
    exit_layers: list[int] | None = None
    exit_heads: str = "shared"
    exit_rule: str | None = None
    exit_gate: bool = False
    cache_policy: str = "all"
    exit_weights: str = "linear"
    exit_scale: int | float = 1.0
    exit_curriculum: str = "none"
    rotation: int = 4
    layer_dropout: int | float = 0.0
    dropout_growth: str = "none"
    distillation: int | float = 0.0
    distillation_temperature: int | float = 1.0
    trains: str = "all"

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
            self.base_config = self._build_base()
        self._take_sizes(self.base_config)
        super().__post_init__(**kwargs)
        exits = self.exits
        for rule in filter(None, (self.exit_rule, f"fixed:{len(exits)}")):
            parse_rule(rule)  # also the rule of training, since a compiled forward pass parses nothing new
        check_policy(self.cache_policy)
        if exits[0] < 1 or exits[-1] > self.num_hidden_layers:
            raise ConfigError(
                f"exit_layers={self.exit_layers}: must be numbers of layers, from 1 to {self.num_hidden_layers}"
            )
        if self.exit_weights == "layerskip" and self.num_hidden_layers == 1:
            raise ConfigError("exit_weights=layerskip: must be another one, because the weight of layer 1 is 0")
        reads_with_own = self.exit_heads != "shared" or self.exit_gate
        if self.trains == "exits" and (not reads_with_own or len(exits) < 2):
            raise ConfigError(f"trains=exits: exit_heads={self.exit_heads} with {len(exits)} exits trains nothing")

    @property
    def exits(self) -> list[int]:
        """Layers with an exit after them, counted from 1, in order; the last layer always has one."""
        chosen = range(1, self.num_hidden_layers) if self.exit_layers is None else self.exit_layers
        return sorted({*chosen, self.num_hidden_layers})

    def _build_base(self) -> PreTrainedConfig:
        """Build the configuration of a new network.

        Raises:
            ConfigError: If transformers has no such type, or the network has no such sizes.
        """
        if self.base not in CONFIG_MAPPING:
            raise ConfigError(f"base={self.base}: transformers has no such type{nearest(self.base, CONFIG_MAPPING)}")
        kind = CONFIG_MAPPING[self.base]
        sizes: dict[str, Any] = {name: getattr(self, name) for name in (*SIZES, "max_position_embeddings")}
        typed = {
            "embedding_size": self.embedding_size or self.hidden_size,
            "num_key_value_heads": self.num_key_value_heads or self.num_attention_heads,
            "head_dim": self.hidden_size // self.num_attention_heads,
        }
        sizes |= {name: value for name, value in typed.items() if hasattr(kind, name)}
        defaulted = ("tie_word_embeddings", "initializer_range")
        sizes |= {name: value for name in defaulted if (value := getattr(self, name)) is not None}
        tokens = {f"{name}_token_id": None for name in ("bos", "eos", "cls", "sep")}
        # The id of padding is not that of the type's own vocabulary; RoBERTa counts positions from it.
        return AutoConfig.for_model(self.base, **sizes, **tokens, pad_token_id=self.pad_token_id)

    def _take_sizes(self, base: PreTrainedConfig) -> None:
        self.base = base.model_type
        for name in SIZES:
            if not hasattr(base, name):
                raise ConfigError(f"base={base.model_type}: its configuration has no {name}")
            setattr(self, name, getattr(base, name))
        for name in OPTIONAL_SIZES:
            setattr(self, name, getattr(base, name, None))
