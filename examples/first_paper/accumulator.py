"""A halting unit that accumulates evidence, and adadepth's command line with this unit; see `docs/first_paper.md`."""

import torch
from torch import Tensor, nn

import adadepth
from adadepth.halting.units import HaltingUnit, UnitMemory
from adadepth.run import main


@adadepth.register_halting_unit
class Accumulator(HaltingUnit):
    """Leaky accumulator: e_n = r e_{n-1} + w h_n and z_n = e_n + b, with learned w, b and retention r in (0, 1).

    With r = 0 it is the unit `linear`.
    """

    name = "accumulator"

    def __init__(self, width: int, bias: float, retention: float = 0.5) -> None:
        super().__init__(width, bias)
        self.weights = nn.Linear(width, 1, bias=False)
        self.retention = nn.Parameter(torch.tensor([retention]).logit())

    def start(self, states: Tensor) -> UnitMemory:
        """Return e_0 = 0."""
        return (torch.zeros_like(states[..., 0]),)

    def forward(self, states: Tensor, memory: UnitMemory, step: int) -> tuple[Tensor, UnitMemory]:
        """Return z_n and e_n."""
        evidence = self.retention.sigmoid() * memory[0] + self.weights(states).squeeze(-1)
        return evidence + self.bias, (evidence,)


if __name__ == "__main__":
    main()
