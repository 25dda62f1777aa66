"""Mixin with `generate` for language models, which validates prompts and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import Cache

from adadepth.errors import ConfigError, DataError
from adadepth.models.shared.cache_argument import CACHE_ARGUMENT, accept_former_name


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
