"""What a saved model needs beside its weights: the tokenizer that fits it."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import PreTrainedTokenizerFast

from adadepth.data.text.saved import for_model


def tokenizer_of(model: Any, tokenizer: PreTrainedTokenizerFast | None) -> PreTrainedTokenizerFast | None:
    """The tokenizer to save with a model: it tells segments where the model reads them, and knows its length.

    Args:
        model: Any `DepthModel`.
        tokenizer: That of the data; None where there is no text.
    """
    return None if tokenizer is None else for_model(tokenizer, model.longest_sequence, reads_types=_reads_types(model))


def _reads_types(model: Any) -> bool:
    """Whether the model takes segments. One of transformers is saved as that, without what this package adds to it."""
    base = model.base_model
    is_foreign = type(base).__module__.partition(".")[0] == "transformers"
    names = inspect.signature(base.forward if is_foreign else model.forward).parameters
    return "token_type_ids" in names and getattr(base.config, "type_vocab_size", 2) > 1
