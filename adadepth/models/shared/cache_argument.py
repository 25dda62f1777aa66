"""Name of the argument with which transformers passes a key-value cache: `cache`, or before 5.24 `past_key_values`.

Models of this package call it `cache`, and accept and return it by both names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from transformers import GenerationMixin

from adadepth.errors import ConfigError

FORMER_NAME = "past_key_values"
_NAMES = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters

# By which `generate` and networks of transformers name the cache.
CACHE_ARGUMENT = "cache" if "cache" in _NAMES else FORMER_NAME


def accept_former_name(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let callers of a method of a model also pass its `cache` as `past_key_values`.

    Raises:
        ConfigError: If a call passes a cache by both names.
    """

    @wraps(method)
    def call_with_cache(*args: Any, **kwargs: Any) -> Any:
        if (former := kwargs.pop(FORMER_NAME, None)) is not None:
            if kwargs.get("cache") is not None:
                raise ConfigError("cache and past_key_values: are two names of one argument; pass one of them")
            kwargs["cache"] = former
        return method(*args, **kwargs)

    return call_with_cache
