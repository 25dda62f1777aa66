"""Dropout whose masks cost little on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LEVELS = 2**16


class Dropout(nn.Dropout):
    """`nn.Dropout`; on a CPU a mask takes 16 random bits an element, drawn six times faster than torch's own.

    There p is rounded to a multiple of 2^-16, and what is kept divided by the rounded 1 - p, so that the mean is exact.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Set elements to 0 with probability p, and divide the others by 1 - p."""
        if not self._draws_bits(input):
            return super().forward(input)
        kept, scale = self._mask(input)
        return input * kept.mul_(scale)

    def added(self, state: Tensor, change: Tensor) -> Tensor:
        """Add what dropout leaves of a change to a state of its shape."""
        if not self._draws_bits(change):
            return state + super().forward(change)
        kept, scale = self._mask(change)
        return torch.addcmul(state, change, kept, value=scale)

    def _draws_bits(self, state: Tensor) -> bool:
        return self.training and self.p > 0 and state.device.type == "cpu"

    def _mask(self, like: Tensor) -> tuple[Tensor, float]:
        """1 at what is kept and 0 elsewhere, in the states' type; and the factor of what is kept."""
        dropped = min(round(self.p * _LEVELS), _LEVELS - 1)
        words = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: like.numel()].view(like.shape)
        kept = torch.ge(bits, dropped - _LEVELS // 2, out=torch.empty(like.shape, dtype=like.dtype))
        return kept, _LEVELS / (_LEVELS - dropped)
