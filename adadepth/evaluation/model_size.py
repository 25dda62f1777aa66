"""Size of a model: parameters outside of embeddings, and the cache of keys and values that a token takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

_CACHED_BYTES = 2  # of a number in 16 bits, in which models are served
_TOKENS = 64  # of the text whose cache is measured


def count_other_parameters(model: Any) -> int:
    """Return the number of parameters outside of embeddings and of the output head over the vocabulary.

    Scaling laws are stated in these parameters (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).
    """
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    head = model.get_output_embeddings()
    left_out = {id(parameter) for module in [*tables, head] if module is not None for parameter in module.parameters()}
    return sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in left_out)


@torch.inference_mode()
def count_cached_numbers(model: Any, token_ids: Sequence[int]) -> float:
    """Return how many numbers the cache of a language model stores for a token: 2 h d for every entry of a layer.

    h is the number of heads of keys and values, and d their width. A layer has an entry for every loop that it runs.
    """
    cache = model(torch.tensor([token_ids], device=model.device), use_cache=True).cache
    if hasattr(cache, "bytes_per_token"):
        return float(cache.bytes_per_token()) / model.dtype.itemsize
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.numel() for tensor in tensors) / len(token_ids)


def measure_cached_bytes(model: Any, example: Any) -> float | None:
    """Return the bytes of keys and values that a token takes in the cache of a language model, in 16-bit numbers.

    The result is None for a model without such a cache. The random state stays as it was.

    Args:
        model: Model in any mode.
        example: Example of the evaluation set, with `input_ids` of a text.
    """
    if not model.can_generate() or "input_ids" not in example:
        return None
    token_ids = torch.as_tensor(example["input_ids"]).flatten()[:_TOKENS].tolist()
    was_training = model.training
    with torch.random.fork_rng():
        numbers = count_cached_numbers(model.eval(), token_ids)
    model.train(was_training)
    return _CACHED_BYTES * numbers or None
