"""The configuration of routed models."""

from __future__ import annotations

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from adadepth.errors import ConfigError
from adadepth.models.routed.settings import ROUTING_WEIGHTS, RoutedSettings, check_routing, list_routed_layers
from adadepth.models.routed.spans import RoutedSpan
from adadepth.models.shared.network_configuration import NetworkConfig


@strict
class RoutedConfig(NetworkConfig, settings=RoutedSettings):
    """The configuration of an encoder or decoder of transformers in which routers choose the tokens of some parts."""

    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        *NetworkConfig.keys_to_ignore_at_inference,
        "hidden_states",
        "router_logits",
        "measures",
    ]

    # The other settings of `RoutedSettings`, which documents them, with the values of a file that lacks them.
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

    def __post_init__(self, **kwargs: object) -> None:
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
