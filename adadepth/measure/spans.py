"""Spans of a text: the best one of a window by its logits, and the token classes whose depths are compared.

Shape legend: B windows, T tokens, K starts and ends that are combined.
"""

from __future__ import annotations

import torch
from torch import Tensor

SPAN_CLASSES = ("all", "correct", "wrong", "question", "context", "answer", "cls", "sep")


def best_spans(
    start_logits: Tensor, end_logits: Tensor, allowed: Tensor, *, n_best: int, max_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Combine the K best starts and the K best ends of every window, as BERT does (Devlin et al. 2019).

    Args:
        start_logits: (B, T).
        end_logits: (B, T).
        allowed: Where a span may begin and end, boolean, (B, T).
        n_best: K.
        max_length: Most tokens of a span.

    Returns:
        Score, float32, first and last token of the best span, each (B,); the score is -inf where no combination is a
        span.
    """
    count = min(n_best, start_logits.shape[1])
    starts, first = start_logits.float().masked_fill(~allowed, -torch.inf).topk(count)
    ends, last = end_logits.float().masked_fill(~allowed, -torch.inf).topk(count)
    length = last[:, None, :] - first[:, :, None] + 1
    scores = (starts[:, :, None] + ends[:, None, :]).masked_fill((length < 1) | (length > max_length), -torch.inf)
    score, cell = scores.flatten(1).max(dim=1)
    chosen = torch.stack([first.gather(1, cell[:, None] // count), last.gather(1, cell[:, None] % count)]).squeeze(-1)
    return score, chosen[0], chosen[1]


def span_classes(
    logits: tuple[Tensor, Tensor],
    positions: tuple[Tensor, Tensor],
    real: Tensor,
    question: Tensor,
    context: Tensor,
) -> dict[str, Tensor]:
    """Sort the tokens of windows into (overlapping) classes; padding is in none of them.

    A window is `correct` where the highest start and the highest end logit are those of the answer, or those of [CLS]
    where the window holds none, and `wrong` otherwise. One whose answer no token holds is neither.

    Args:
        logits: Of starts and of ends, each (B, T).
        positions: First and last token of the answer, each (B,); 0, that of [CLS], where there is none in the window,
            negative where it is unknown.
        real: Which tokens are no padding, boolean, (B, T).
        question: Which are the question's, likewise.
        context: Which are the context's, likewise.

    Returns:
        Name to boolean mask (B, T), with the names of SPAN_CLASSES.
    """
    start, end = positions
    guesses = [values.float().masked_fill(~real, -torch.inf).argmax(dim=1) for values in logits]
    is_right = ((guesses[0] == start) & (guesses[1] == end))[:, None]
    is_known = (start >= 0)[:, None]
    place = torch.arange(real.shape[1], device=real.device)
    return {
        "all": real,
        "correct": real & is_known & is_right,
        "wrong": real & is_known & ~is_right,
        "question": question,
        "context": context,
        "answer": context & (place >= start[:, None]) & (place <= end[:, None]) & (start > 0)[:, None],
        "cls": real & (place == 0),
        "sep": real & ~question & ~context & (place > 0),
    }
