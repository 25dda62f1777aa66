"""The configuration of routed models."""

from __future__ import annotations

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig

from adadepth.config.declaration import setting
from adadepth.errors import ConfigError
from adadepth.models.routed.family import ROUTING_WEIGHTS, RoutedSettings, check_routing, list_routed_layers
from adadepth.models.routed.spans import RoutedSpan
from adadepth.models.shared.configuration import BESIDE_LOGITS, FamilyConfig
from adadepth.models.shared.network_configuration import build_network_config, copy_sizes


@strict
class RoutedConfig(FamilyConfig, settings=RoutedSettings):
    """The configuration of an encoder or decoder of transformers in which routers choose the tokens of some parts."""

    keys_to_ignore_at_inference: ClassVar[list[str]] = [*BESIDE_LOGITS, "past_key_values", "router_logits", "measures"]
    sub_configs: ClassVar = {"base_config": AutoConfig}

    # The settings of `RoutedSettings`, which documents them, with the values of a file that lacks them.
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
    router: str = "expert"
    recursions: int | None = None
    sharing: str = "cycle"
    prelude: int = 0
    coda: int = 0
    routed_layers: list[int] | None = None
    capacities: list[int | float] | None = None
    router_network: str = "linear"
    gating: str = "output"
    gate_scale: int | float = 0.1
    keys_and_values: str = "selected"
    causal_choice: str = "router"
    choice_bias: int | float = 0.0
    adapter_size: int | None = None
    routing_weight: int | float | None = None
    z_weight: int | float = 0.0
    balance: str = "loss"
    bias_step: int | float = 0.001
    measure_leak: bool = False
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
        for mistake in check_routing(self):
            raise ConfigError(mistake)

    @property
    def layer_order(self) -> list[int]:
        """Number of the module with the weights of every layer that a token passes, from 0."""
        modules, loops = range(self.num_hidden_layers), self.recursions or 1
        first, core, last = self._split(list(modules))
        if self.sharing == "sequence":
            return [*first, *(module for module in core for _ in range(loops)), *last]
        return [*first, *(core * loops if self.sharing == "cycle" else core), *last]

    @property
    def spans(self) -> list[RoutedSpan]:
        """Spans of the network in order: those that all tokens run, and those with a router."""
        order = self.layer_order
        owners = self._assign_routers(len(order))
        starts = [at for at in range(len(order)) if at == 0 or owners[at] != owners[at - 1]]
        spans = []
        for number, start in enumerate(starts):
            stop = [*starts, len(order)][number + 1]
            sources = tuple(
                order.index(order[at]) if self.keys_and_values == "first" else at for at in range(start, stop)
            )
            spans.append(RoutedSpan(number, start, tuple(order[start:stop]), owners[start], sources))
        return spans

    @property
    def routed_capacities(self) -> list[float]:
        """Capacity of each routed span, the share of the tokens that it processes.

        By default recursions have 1, (R - 1) / R, ..., 1 / R, as MoR has, and single layers 1 / 8, as MoD has.
        """
        number = self.recursions or len(self._list_routed_layers())
        if self.capacities is not None:
            return [*self.capacities] if len(self.capacities) > 1 else [*self.capacities] * number
        if self.recursions is None:
            return [0.125] * number
        return [(number - at) / number for at in range(number)]

    @property
    def weight_of_routing(self) -> float:
        """Weight of the routers' loss."""
        return ROUTING_WEIGHTS[self.router] if self.routing_weight is None else float(self.routing_weight)

    def _split(self, modules: list[int]) -> tuple[list[int], list[int], list[int]]:
        last = len(modules) - self.coda
        return modules[: self.prelude], modules[self.prelude : last], modules[last:]

    def _list_routed_layers(self) -> list[int]:
        layers = list_routed_layers(self)
        assert layers is not None
        return layers

    def _assign_routers(self, layers: int) -> list[int | None]:
        """Return the router of every layer that a token passes, None if all tokens run it."""
        if self.recursions is None:
            routers = {layer - 1: number for number, layer in enumerate(self._list_routed_layers())}
            return [routers.get(at) for at in range(layers)]
        core = layers - self.prelude - self.coda
        size = core // self.recursions
        return [*[None] * self.prelude, *(at // size for at in range(core)), *[None] * self.coda]
