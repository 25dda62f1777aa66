"""The settings of the router."""

from dataclasses import dataclass

from adadepth.config import family_name
from adadepth.config.declaration import FINITE, OPEN_SHARE, at_least, setting
from adadepth.models.shared.albert.settings import AlbertSettings


@dataclass
class RouterSettings(AlbertSettings):
    """Settings of a shared ALBERT block with a router that selects the tokens to update in every step."""

    name: str = family_name("router")
    router_size: int = setting(32, "inner width of the router", at_least(1), shape=True, debug=8)
    router_bias_init: float = setting(0.5, "initial bias; above 0 updates every token at first", FINITE)
    threshold: float = setting(0.5, "a step updates the tokens of which the router is surer than this", OPEN_SHARE)
    update_price: float = setting(0.0, "what an update of a token costs in the loss", at_least(0))
