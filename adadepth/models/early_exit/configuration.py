"""The configuration of early-exit models."""

from __future__ import annotations

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import parse_rule
from adadepth.models.early_exit.cache import check_policy
from adadepth.models.early_exit.family import EarlyExitSettings
from adadepth.models.shared.network_configuration import NetworkConfig


@strict
class EarlyExitConfig(NetworkConfig, settings=EarlyExitSettings):
    """The configuration of an encoder or decoder of transformers whose layers can be left early."""

    keys_to_ignore_at_inference: ClassVar[list[str]] = [*NetworkConfig.keys_to_ignore_at_inference, "hidden_states"]

    # The other settings of `EarlyExitSettings`, which documents them, with the values of a file that lacks them.
    embedding_size: int | None = None
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

    def __post_init__(self, **kwargs: object) -> None:
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
