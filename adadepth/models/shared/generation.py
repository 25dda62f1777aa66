"""Generation with language models: the cache of keys and values by both of its names, and checks of prompts.

transformers passes a key-value cache by the argument `cache`, or before 5.24 `past_key_values`. Models of this package
call it `cache`, and accept and return it by both names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from transformers import Cache, GenerationMixin
from transformers.utils import ModelOutput

from adadepth.errors import ConfigError, DataError

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


class CacheOutput(ModelOutput):
    """`ModelOutput` with a field `cache`, which can also be read as `past_key_values`.

    Its tuple follows the order of the declared fields, not the order of assignment.
    """

    cache: Cache | None

    @property
    def past_key_values(self) -> Cache | None:
        """The cache."""
        return self.cache

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__("cache" if key == FORMER_NAME else key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__("cache" if key == FORMER_NAME else key)

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values of all fields that are not None, in declared order."""
        return tuple(self[field.name] for field in fields(cast(Any, self)) if field.name in self)


class CheckedGeneration:
    """Mixin whose `generate` raises one-line errors for invalid prompts; used together with `GenerationMixin`.

    Attributes:
        drafting: Method of drafting tokens with less depth, for the message about `assistant_early_exit`.
    """

    drafting: ClassVar[str] = "it does not support drafts with less depth"
    vocabulary_size: int | None
    generation_config: Any

    @accept_former_name
    def generate(self, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Generate continuations of prompts as transformers does, after validating the prompts.

        Args:
            inputs: Token ids (B, T).
            generation_config: Generation settings of transformers.
            *args: Positional arguments of `generate` in transformers.
            **kwargs: Keyword arguments of `generate` in transformers.

        Raises:
            DataError: If the prompt is empty, or has ids outside of the vocabulary.
            ConfigError: If `assistant_early_exit` requests drafting with first layers that have no exit.
        """
        prompt = kwargs.get("input_ids") if inputs is None else inputs
        if prompt is not None:
            check_prompt(prompt, self.vocabulary_size)
        config = self.generation_config if generation_config is None else generation_config
        layers = kwargs.get("assistant_early_exit", getattr(config, "assistant_early_exit", None))
        if layers is not None:
            self.check_early_exit(layers)
        if "cache" in kwargs:
            kwargs[CACHE_ARGUMENT] = kwargs.pop("cache")
        parent: Any = super()
        return parent.generate(inputs, generation_config, *args, **kwargs)

    def check_early_exit(self, layer: int) -> None:
        """Raise an error if assisted generation would draft with the first layers, but the model cannot exit there.

        Raises:
            ConfigError: If there is no exit after this layer.
        """
        raise ConfigError(
            f"assistant_early_exit={layer}: {type(self).__name__} has no layers for an early exit; {self.drafting}"
        )


def resolve_cache(
    cache: Cache | None, use_cache: bool | None, policy: str, make_cache: Callable[[], Cache | None]
) -> Cache | None:
    """Return the key-value cache of a forward pass for a cache policy given by its name.

    Args:
        cache: Cache that the call passes, whose policy is its attribute `policy`, or `all` without one.
        use_cache: Whether the call uses a cache; None: it does, because it requests a policy.
        policy: Name of the policy.
        make_cache: Function that makes an empty cache with this policy.

    Raises:
        ConfigError: If the call uses no cache, or one with another policy.
    """
    if use_cache is False:
        raise ConfigError(f"cache_policy={policy}: needs a call with a cache, but use_cache=False")
    if cache is None:
        return make_cache()
    has = str(getattr(cache, "policy", "all"))
    if policy != has:
        raise ConfigError(f"cache_policy={policy}: the cache is a {type(cache).__name__} of policy {has}")
    return cache


def check_prompt(ids: Any, pieces: int | None) -> None:
    """Raise an error if a prompt is empty or not a tensor of token ids.

    Args:
        ids: Token ids (B, T).
        pieces: Size of the vocabulary, or None if ids are not checked.

    Raises:
        DataError: States the error in the prompt.
    """
    if not isinstance(ids, Tensor):
        raise DataError(f"input_ids: must be a tensor of token ids (rows, tokens), not a {type(ids).__name__}")
    if ids.dim() != 2 or ids.numel() == 0:
        raise DataError(
            f"input_ids of shape {tuple(ids.shape)}: must be (rows, tokens), with at least one token per row"
        )
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise DataError(f"input_ids of type {ids.dtype}: token ids must be integers")
    low, high = (int(edge) for edge in ids.aminmax())
    if pieces is not None and not 0 <= low <= high < pieces:
        raise DataError(f"input_ids from {low} to {high}: must be from 0 to {pieces - 1}")
