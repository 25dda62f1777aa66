"""What generation keeps of the text so far, so that a new token costs the same behind any prefix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from adadepth.errors import ConfigError, DataError
from adadepth.families.par_xl.configuration import ParXLConfig


class ParXLCache(DynamicCache):
    """Keys and values of the last M positions of every block that attends, and its projected distances W_R r.

    Keys and values of a position never change, so they are what Transformer-XL would compute from the states that it
    remembers (Dai et al. 2019). A network without memory, M = 0, keeps all positions.

    Args:
        config: Of the network.
        memory_length: M; None: as configured.
    """

    def __init__(self, config: ParXLConfig, memory_length: int | None = None) -> None:
        kept = config.memory_length if memory_length is None else memory_length
        # A window of transformers holds the token itself, too.
        layers: list[Any] = [DynamicSlidingWindowLayer(kept + 1) if kept else DynamicLayer() for _ in config.attending]
        Cache.__init__(self, layers=layers)
        self._distances: dict[int, Tensor] = {}

    def distances(self, layer: int, codes: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """The projected codes of the distances L to 0, (L + 1, d); those that it knows are not projected again."""
        known = self._distances.get(layer)
        missing = len(codes) - (0 if known is None else len(known))
        if missing > 0:
            new = project(codes[:missing])
            known = self._distances[layer] = new if known is None else torch.cat([new, known])
        assert known is not None
        return known[-len(codes) :]

    def reset(self) -> None:
        """Forget the text, and the distances: the weights may be others next time."""
        super().reset()
        self._distances.clear()


def check_cache(cache: Cache) -> None:
    """Refuse a cache of fixed size.

    Raises:
        DataError: Naming its class.
    """
    if cache.is_compileable:
        raise DataError(f"past_key_values={type(cache).__name__}: needed is a cache that grows, such as ParXLCache")


def check_implementation(name: str | None) -> None:
    """Refuse a cache that `generate` would make instead of a `ParXLCache`.

    Raises:
        ConfigError: Naming it.
    """
    if name not in (None, "dynamic"):
        raise ConfigError(f"cache_implementation={name}: of par_xl only dynamic is known, or none")


def kept_positions(cache: Cache | None) -> int:
    """How many positions of the text so far attention can see."""
    return 0 if cache is None else cache.get_mask_sizes(0, 0)[0]
