"""The configuration of the router: an ALBERT's shape and the settings of the family."""

from huggingface_hub.dataclasses import strict

from adadepth.models.shared.albert.configuration import AlbertShape
from adadepth_router.settings import RouterSettings


@strict
class RouterConfig(AlbertShape, settings=RouterSettings):
    """The configuration of a router; `num_hidden_layers` is the number of steps N, the maximum updates of a token."""

    router_size: int = 32
    router_bias_init: int | float = 0.5
    threshold: int | float = 0.5
    update_price: int | float = 0.0
