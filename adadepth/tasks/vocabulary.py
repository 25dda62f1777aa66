"""Whether a model knows every piece of the tokenizer that it is evaluated with."""

from __future__ import annotations

from typing import Any

from adadepth.config import ExperimentConfig
from adadepth.errors import CheckpointError


def check_vocabulary(config: ExperimentConfig, model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer with more pieces than a model has embeddings; vectors have no tokenizer.

    Args:
        config: Names the tokenizer in the message.
        model: Any `DepthModel` or `StateEncoder`.
        tokenizer: That of the data; None: there is none.

    Raises:
        CheckpointError: With both numbers.
    """
    known = model.vocabulary_size
    if tokenizer is None or known is None or len(tokenizer) <= known:
        return
    place = config.tokenizer.path or config.checkpoint
    raise CheckpointError(f"tokenizer.path={place}: it has {len(tokenizer)} pieces, the model {known}; give its own")
