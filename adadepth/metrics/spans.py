"""Answer spans of question answering: the best span of every window, and the classes of a window's tokens.

Shape legend: B windows, T tokens, K candidate starts and ends.
"""

from __future__ import annotations

import torch
from torch import Tensor

SPAN_CLASSES = ("all", "correct", "wrong", "question", "context", "answer", "cls", "sep")


def find_best_spans(
    start_logits: Tensor, end_logits: Tensor, allowed: Tensor, *, n_best: int, max_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best answer span of every window, searched among its K best starts and K best ends as in BERT.

    Args:
        start_logits: Logits of the first token, (B, T).
        end_logits: Logits of the last token, (B, T).
        allowed: Mask of the tokens where a span may start and end, boolean, (B, T).
        n_best: Number K of candidate starts and of candidate ends.
        max_length: Largest number of tokens of a span.

    Returns:
        Score, float32, first token and last token of the best span, each (B,). The score is -inf if no pair is a valid
        span.
    """
    count = min(n_best, start_logits.shape[1])
    starts, first = start_logits.float().masked_fill(~allowed, -torch.inf).topk(count)
    ends, last = end_logits.float().masked_fill(~allowed, -torch.inf).topk(count)
    length = last[:, None, :] - first[:, :, None] + 1
    scores = (starts[:, :, None] + ends[:, None, :]).masked_fill((length < 1) | (length > max_length), -torch.inf)
    score, cell = scores.flatten(1).max(dim=1)
    row, column = cell[:, None] // count, cell[:, None] % count
    return score, first.gather(1, row).squeeze(1), last.gather(1, column).squeeze(1)


def classify_span_tokens(
    logits: tuple[Tensor, Tensor],
    positions: tuple[Tensor, Tensor],
    real: Tensor,
    question: Tensor,
    context: Tensor,
) -> dict[str, Tensor]:
    """Return a mask of tokens per class, such as question and answer. Classes overlap; padding has none.

    A window is `correct` if the highest start and end logits are at the answer, or at [CLS] if the window has no
    answer. Otherwise it is `wrong`. A window with an unknown answer is neither.

    Args:
        logits: Logits of starts and of ends, each (B, T).
        positions: First and last token of the answer, each (B,). They are 0, the position of [CLS], if the window has
            no answer, and negative if the answer is unknown.
        real: Mask of the tokens that are not padding, boolean, (B, T).
        question: Mask of the tokens of the question, boolean, (B, T).
        context: Mask of the tokens of the context, boolean, (B, T).

    Returns:
        Boolean masks, (B, T), by name. The names are those of `SPAN_CLASSES`.
    """
    start, end = positions
    guesses = [values.float().masked_fill(~real, -torch.inf).argmax(dim=1) for values in logits]
    is_right = ((guesses[0] == start) & (guesses[1] == end))[:, None]
    is_known = (start >= 0)[:, None]
    position = torch.arange(real.shape[1], device=real.device)
    return {
        "all": real,
        "correct": real & is_known & is_right,
        "wrong": real & is_known & ~is_right,
        "question": question,
        "context": context,
        "answer": context & (position >= start[:, None]) & (position <= end[:, None]) & (start > 0)[:, None],
        "cls": real & (position == 0),
        "sep": real & ~question & ~context & (position > 0),
    }
