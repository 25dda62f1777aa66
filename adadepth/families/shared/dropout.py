"""Dropout whose masks are drawn cheaply on a CPU.

torch draws a random number for each value there, which costs more than the products of a small head. Here a number of
64 bits makes four decisions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_STEPS = 2**16  # what 16 random bits can tell apart: the probability is rounded to so many
_WORTH_FOUR_CALLS = 2**12  # values from which on the cheaper draw saves more than its further calls cost


class Dropout(nn.Dropout):
    """As torch's: zeros with probability p, and the rest divided by 1 - p, in training; elsewhere than on a CPU its."""

    def forward(self, input: Tensor) -> Tensor:
        """Values of any shape."""
        acts = self.training and 0 < self.p < 1 and not torch.compiler.is_compiling()
        if acts and input.device.type == "cpu" and input.numel() >= _WORTH_FOUR_CALLS:
            return input * draw_mask(input, self.p)
        return super().forward(input)


def draw_mask(like: Tensor, probability: float) -> Tensor:
    """A mask of a tensor's shape and type: 0 with this probability, else what keeps the mean at 1."""
    dropped = round(probability * _STEPS)
    bits = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = bits.view(torch.int16)[: like.numel()].view(like.shape) >= dropped - _STEPS // 2
    return kept.to(like.dtype).mul_(_STEPS / (_STEPS - dropped))
