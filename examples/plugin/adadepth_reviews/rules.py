"""Stick-breaking halting (Tan et al. 2023, "Sparse Universal Transformer", arXiv 2310.07096)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adadepth.halting.rules import HaltingRule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StickBreaking(HaltingRule):
    """q_n = p_n (1 - h_{n-1}): p_n is the probability of halting at update n of a token that has not halted before.

    ACT adds probabilities up, and every token halts at its second update where they are one half, as at first; this
    sum is 1 - prod (1 - p_j), so that tokens start deep without a bias: 1 - 2^-n exceeds 0.99 at n = 7.
    """

    name = "stick_breaking"

    def mass(self, probability: Tensor, accumulated: Tensor, step: int) -> Tensor:
        """See the class."""
        return probability * (1.0 - accumulated)
