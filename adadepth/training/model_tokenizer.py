"""The tokenizer that is saved with a model: it fits what the model reads."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import PreTrainedTokenizerFast

from adadepth.data.text.tokenizer import for_model
from adadepth.runs.data_identity import DataIdentity


def fit_tokenizer(model: Any, tokenizer: PreTrainedTokenizerFast | None) -> PreTrainedTokenizerFast | None:
    """Return a tokenizer that tells segments where the model reads them, and knows how long a text may be.

    Args:
        model: Any `DepthModel`.
        tokenizer: The tokenizer of the data; None where there is no text.
    """
    return None if tokenizer is None else for_model(tokenizer, _longest_text(model), reads_types=_reads_types(model))


def _longest_text(model: Any) -> int | None:
    """Return the most tokens that a text is cut to: as many as in training, or as the model has positions for.

    A language model that writes is not cut: its prompts may be longer than its training sequences.
    """
    identity = DataIdentity.from_config("model", str(model.name_or_path), model.config)
    trained = None if identity is None or model.can_generate() else identity.sequence_length
    return min((length for length in (trained, model.longest_sequence) if length is not None), default=None)


def _reads_types(model: Any) -> bool:
    """Tell whether the model takes segments.

    A model of transformers is saved as that, without what this package adds to it.
    """
    base = model.base_model
    is_foreign = type(base).__module__.partition(".")[0] == "transformers"
    names = inspect.signature(base.forward if is_foreign else model.forward).parameters
    return "token_type_ids" in names and getattr(base.config, "type_vocab_size", 2) > 1
