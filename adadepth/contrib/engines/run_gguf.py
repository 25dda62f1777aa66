"""Functions that run the file `model.gguf` of an export with llama.cpp.

They need the package `llama-cpp-python` and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import GGML_TYPE_F32, Llama

_LONGEST_TEXT = 1024


def load(folder: Path) -> Any:
    """Load the model of a folder into llama.cpp, for texts of up to 1,024 tokens, with the logits of all positions.

    Keys and values of earlier tokens are kept in float32. llama.cpp's default is float16, which changes logits by some
    1e-4 of their size.
    """
    return Llama(
        str(folder / "model.gguf"),
        n_ctx=_LONGEST_TEXT,
        logits_all=True,
        n_threads=1,
        n_threads_batch=1,
        type_k=GGML_TYPE_F32,
        type_v=GGML_TYPE_F32,
        verbose=False,
    )


def compute_logits(model: Any, token_ids: list[int]) -> list[list[float]]:
    """Return the logits after every token of a text, [tokens][vocabulary]."""
    model.reset()
    model.eval(token_ids)
    logits: list[list[float]] = np.array(model.scores[: len(token_ids)]).tolist()
    return logits


def generate(model: Any, token_ids: list[int], count: int) -> list[int]:
    """Return the `count` likeliest next tokens of a text, one after the other."""
    model.reset()
    tokens: list[int] = []
    read = token_ids
    for _ in range(count):
        model.eval(read)
        tokens.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        read = tokens[-1:]
    return tokens
