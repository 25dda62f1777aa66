"""A halting unit that also reads how far the last update moved a state."""

import torch
from torch import Tensor, nn

from adadepth.halting.units import HaltingUnit, UnitMemory


class Movement(HaltingUnit):
    """z_n = w h_n + u r_n + b, with r_n = |h_n - h_{n-1}| / |h_{n-1}| and r_1 = 0; the memory is h_n."""

    name = "movement"

    def __init__(self, width: int, bias: float, slope: float = 0.0) -> None:
        super().__init__(width, bias)
        self.weights = nn.Linear(width, 1, bias=False)
        self.slope = nn.Parameter(torch.tensor([slope]))

    def start(self, states: Tensor) -> UnitMemory:
        """Return zeros in place of h_0, which no update reads."""
        return (torch.zeros_like(states),)

    def forward(self, states: Tensor, memory: UnitMemory, step: int) -> tuple[Tensor, UnitMemory]:
        """Return z_n and h_n."""
        logits = self.weights(states).squeeze(-1) + self.bias
        if step > 1:
            logits = logits + self.slope * (states - memory[0]).norm(dim=-1) / memory[0].norm(dim=-1)
        return logits, (states,)
