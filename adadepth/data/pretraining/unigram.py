"""What a model that ignores the context achieves: the figure every masked language model has to beat."""

from __future__ import annotations

from typing import Any

import numpy as np

from adadepth.data.pretraining.examples import PretrainingExamples
from adadepth.data.pretraining.load import PretrainingData
from adadepth.data.pretraining.masking import IGNORE
from adadepth.errors import DataError

_TOKENS_AT_ONCE = 2**24


def unigram_baseline(data: PretrainingData) -> dict[str, Any]:
    """Predict every masked evaluation token by the training tokens' frequencies (add-one, special tokens left out).

    Returns:
        ``accuracy`` of always answering the most frequent token, ``cross_entropy`` in nats a masked token, ``token``
        (the answer) and ``positions`` (their number).

    Raises:
        DataError: the training data is streamed and has no frequencies.
    """
    if not isinstance(data.train, PretrainingExamples):
        raise DataError("dataset.streaming=true: the unigram baseline needs prepared training data")
    tokens, ordinary = data.train.store.tokens, data.train.vocabulary.ordinary
    counts = np.zeros(len(data.tokenizer), dtype=np.int64)
    for start in range(0, len(tokens), _TOKENS_AT_ONCE):
        counts += np.bincount(tokens[start : start + _TOKENS_AT_ONCE], minlength=len(counts))
    frequencies = counts[ordinary] + 1
    log_probabilities = np.full(len(counts), -np.inf)
    log_probabilities[ordinary] = np.log(frequencies / frequencies.sum())
    labels = np.concatenate([data.evaluation[index]["labels"] for index in range(len(data.evaluation))])
    labels = labels[labels != IGNORE]
    answer = int(log_probabilities.argmax())
    return {
        "accuracy": float((labels == answer).mean()), "cross_entropy": float(-log_probabilities[labels].mean()),
        "token": str(data.tokenizer.convert_ids_to_tokens(answer)), "positions": len(labels),
    }  # fmt: skip
