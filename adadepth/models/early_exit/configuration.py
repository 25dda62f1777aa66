"""The configuration of early-exit models."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from adadepth.config.declaration import setting
from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import parse_rule
from adadepth.halting.step_losses import prepare_step_loss
from adadepth.models.early_exit.cache import check_policy
from adadepth.models.early_exit.settings import EarlyExitSettings
from adadepth.models.shared.network_configuration import NetworkConfig
from adadepth.models.shared.network_settings import DECODERS
from adadepth.models.shared.published_files import TOKEN_FIELDS


@strict
class EarlyExitConfig(NetworkConfig, settings=EarlyExitSettings):
    """The configuration of an encoder or decoder of transformers whose layers can be left early.

    It can also read those of decoders of transformers, such as LayerSkip's.
    """

    keys_to_ignore_at_inference: ClassVar[list[str]] = [*NetworkConfig.keys_to_ignore_at_inference, "hidden_states"]

    # The other settings of `EarlyExitSettings`, which documents them, with the values of a file that lacks them.
    embedding_size: int | None = None
    exit_layers: list[int] | None = None
    exit_heads: str = "shared"
    pooling: str = "first"
    exit_rule: str | None = None
    exit_gate: bool = False
    halting_unit: str = "linear"
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
    save_base: bool = True

    base_hash: str | None = setting(
        None,
        "digest of the network on which exits were trained; other weights are refused",
        shape=True,
        later=True,
    )

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        exits = self.exits
        parse_rule(f"fixed:{len(exits)}")  # the rule of training, since a compiled forward pass parses nothing new
        prepare_step_loss(self.exit_weights)
        check_policy(self.cache_policy)
        if exits[0] < 1 or exits[-1] > self.num_hidden_layers:
            raise ConfigError(
                f"exit_layers={self.exit_layers}: must be numbers of layers, from 1 to {self.num_hidden_layers}"
            )
        if self.exit_weights == "layerskip" and self.num_hidden_layers == 1:
            raise ConfigError("exit_weights=layerskip: must be another one, because the weight of layer 1 is 0")
        if self.exit_gate and len(exits) < 2:
            raise ConfigError(f"exit_gate=True: needs at least 2 exits, but exit_layers={self.exit_layers} has 1")
        if self.halting_unit != "linear" and not self.exit_gate:
            raise ConfigError(f"halting_unit={self.halting_unit}: only used with exit_gate=true")
        reads_with_own = self.exit_heads != "shared" or self.exit_gate
        if self.trains == "exits" and (not reads_with_own or len(exits) < 2):
            raise ConfigError(f"trains=exits: exit_heads={self.exit_heads} with {len(exits)} exits trains nothing")
        if self.trains != "exits":
            self.base_hash = None  # training changes the network
        if not self.save_base and self.base_hash is None:
            raise ConfigError("save_base=False: needs exits that are trained on a frozen network, with trains=exits")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration from a dictionary, which may be that of a decoder of transformers.

        Args:
            config_dict: Fields. Those of a decoder become `base_config`, and exits are after all its layers.
            kwargs: Fields that take precedence.
        """
        if config_dict.get("model_type") not in DECODERS:
            return super().from_dict(config_dict, **kwargs)
        names = {field.name for field in dataclasses.fields(cls)} & kwargs.keys()
        tokens = {name: config_dict.get(name) for name in TOKEN_FIELDS}
        fields = {
            **tokens,
            "dtype": config_dict.get("dtype", config_dict.get("torch_dtype")),
            "architectures": ["EarlyExitForCausalLM"],
            "base_config": {name: value for name, value in config_dict.items() if name != "auto_map"},
        }
        return super().from_dict(fields | {name: kwargs.pop(name) for name in names}, **kwargs)

    @property
    def exits(self) -> list[int]:
        """Layers with an exit after them, counted from 1, in order; the last layer always has one."""
        chosen = range(1, self.num_hidden_layers) if self.exit_layers is None else self.exit_layers
        return sorted({*chosen, self.num_hidden_layers})
