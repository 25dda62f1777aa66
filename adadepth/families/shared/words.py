"""What can be said of a batch of words before a model reads it, without waiting for a device."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def check_words(words: Tensor, table: nn.Module) -> None:
    """Refuse a batch without a token, and on a CPU numbers of words that there are not.

    To look at numbers on an accelerator would hold it up in every step; there its own assertion tells.

    Args:
        words: Ids (B, T), or embeddings (B, T, E).
        table: The model's word embeddings; one that does not say how many there are is asked nothing.

    Raises:
        ValueError: Naming what is wrong.
    """
    if words.numel() == 0:
        raise ValueError(f"input of shape {tuple(words.shape)}: needed is at least one sequence of at least one token")
    known = getattr(table, "num_embeddings", None)
    if known is None or words.is_floating_point() or words.device.type != "cpu" or torch.compiler.is_compiling():
        return
    low, high = words.aminmax()
    if low < 0 or high >= known:
        raise ValueError(f"input_ids from {int(low)} to {int(high)}: must be from 0 to {known - 1}")
