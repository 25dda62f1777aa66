"""Preparation of the tokenizer that is saved with a model, so that it produces the inputs of the model."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import PreTrainedTokenizerFast

from adadepth.data.text.tokenizer import for_model
from adadepth.runs.data_identity import DataIdentity


def fit_tokenizer(model: Any, tokenizer: PreTrainedTokenizerFast | None) -> PreTrainedTokenizerFast | None:
    """Return a copy of a tokenizer with the segment ids and the length limit of the model.

    Args:
        model: A `DepthModel`.
        tokenizer: The tokenizer of the data, or None if the data have no text.
    """
    return None if tokenizer is None else for_model(tokenizer, _limit_length(model), reads_types=_reads_types(model))


def _limit_length(model: Any) -> int | None:
    """Return the training sequence length, capped at the model's number of positions.

    Prompts of a generating language model are not cut to the length of its training sequences.
    """
    identity = DataIdentity.from_config("model", str(model.name_or_path), model.config)
    trained = None if identity is None or model.can_generate() else identity.sequence_length
    return min((length for length in (trained, model.longest_sequence) if length is not None), default=None)


def _reads_types(model: Any) -> bool:
    """Return whether the model takes segment ids.

    A model of transformers is saved without the additions of this package, so the signature of its own `forward`
    decides.
    """
    base = model.base_model
    is_foreign = type(base).__module__.partition(".")[0] == "transformers"
    names = inspect.signature(base.forward if is_foreign else model.forward).parameters
    return "token_type_ids" in names and getattr(base.config, "type_vocab_size", 2) > 1
