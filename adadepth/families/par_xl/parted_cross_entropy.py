"""Cross-entropy over many words without the logits of all rows at once.

On a CPU it is memory, not arithmetic, that a tail of an adaptive softmax waits for: logits, log-probabilities and their
two gradients, each of some megabytes that no cache holds and that the system hands out anew in every update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

_LOGITS = 2**17  # of one part: half a megabyte


def parted_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """-log softmax(x W' + b)_w of every row, (n,); the backward pass computes the logits a second time.

    Args:
        states: x, (n, k).
        weight: W, (V, k).
        bias: b, (V,), or None.
        targets: w, (n,).
    """
    losses: Tensor = _PartedCrossEntropy.apply(states, weight, bias, targets)
    return losses


class _PartedCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        # Of a table of words whose vectors are narrow, products are two to eight times faster with the words last.
        words_last = weight.t().contiguous()
        ctx.save_for_backward(states, words_last, bias, targets)
        losses = states.new_empty(len(states))
        for rows in _parts(states, words_last):
            logits = _logits(states[rows], words_last, bias)
            losses[rows] = nn.functional.cross_entropy(logits, targets[rows], reduction="none")
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        states, words_last, bias, targets = ctx.saved_tensors
        of_states, of_words = torch.empty_like(states), torch.zeros_like(words_last)
        of_bias = None if bias is None else torch.zeros_like(bias)
        for rows in _parts(states, words_last):
            above = gradient[rows].unsqueeze(1)
            of_logits = _logits(states[rows], words_last, bias).softmax(dim=1).mul_(above)
            of_logits.scatter_add_(1, targets[rows].unsqueeze(1), -above)
            torch.mm(of_logits, words_last.t(), out=of_states[rows])
            of_words.addmm_(states[rows].t(), of_logits)
            if of_bias is not None:
                of_bias += of_logits.sum(dim=0)
        return of_states, of_words.t(), of_bias, None


def _logits(states: Tensor, words_last: Tensor, bias: Tensor | None) -> Tensor:
    return states @ words_last if bias is None else torch.addmm(bias, states, words_last)


def _parts(states: Tensor, words_last: Tensor) -> Iterator[slice]:
    """Rows that together have `_LOGITS` logits, or single ones."""
    size = max(_LOGITS // words_last.shape[1], 1)
    return (slice(start, start + size) for start in range(0, len(states), size))
