"""The configuration of early-exit models."""

from __future__ import annotations

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig

from adadepth.config.declaration import setting
from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import parse_rule
from adadepth.models.early_exit.cache import check_policy
from adadepth.models.early_exit.family import EarlyExitSettings
from adadepth.models.shared.configuration import BESIDE_LOGITS, FamilyConfig
from adadepth.models.shared.network_configuration import build_network_config, copy_sizes


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
            self.base_config = build_network_config(self)
        copy_sizes(self, self.base_config)
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
