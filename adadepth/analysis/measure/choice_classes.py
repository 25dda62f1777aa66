"""The token classes of multiple choice whose depths are compared: every choice is a sequence of its own.

Shape legend: B examples, C choices, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHOICE_CLASSES = ("all", "correct", "wrong", "right", "other", "taken", "context", "ending", "cls", "sep")


def choice_classes(logits: Tensor, labels: Tensor, real: Tensor, context: Tensor, ending: Tensor) -> dict[str, Tensor]:
    """Sort the tokens of all choices into (overlapping) classes; padding is in none of them.

    Args:
        logits: (B, C).
        labels: The right choice of each example, (B,).
        real: Which tokens are no padding, boolean, (B, C, T).
        context: Which are the text's before the ending, likewise.
        ending: Which are the ending's, likewise.

    Returns:
        Name to boolean mask (B, C, T), with the names of CHOICE_CLASSES: the tokens of examples whose right choice is
        taken (`correct`) or not (`wrong`), those of the `right` choice, of an `other` one, and of the one `taken`.
    """
    guesses = logits.argmax(dim=1)
    number = torch.arange(logits.shape[1], device=logits.device)
    is_right = (number == labels[:, None])[:, :, None]
    is_taken = (number == guesses[:, None])[:, :, None]
    is_correct = (guesses == labels)[:, None, None]
    is_first = torch.arange(real.shape[2], device=real.device) == 0
    return {
        "all": real,
        "correct": real & is_correct,
        "wrong": real & ~is_correct,
        "right": real & is_right,
        "other": real & ~is_right,
        "taken": real & is_taken,
        "context": context,
        "ending": ending,
        "cls": real & is_first,
        "sep": real & ~context & ~ending & ~is_first,
    }
