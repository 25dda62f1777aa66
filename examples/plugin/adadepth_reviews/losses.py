"""A loss over exits that trains a token most at the exits that already predict it well."""

from dataclasses import dataclass

from torch import Tensor

from adadepth.config.declaration import POSITIVE, setting
from adadepth.halting.step_losses import StepLoss


@dataclass(frozen=True)
class Competence(StepLoss):
    """w_n = d_n exp(-L_n / T) / sum_m d_m exp(-L_m / T), from the loss L_n and the depth d_n of exit n."""

    name = "competence"
    temperature: float = setting(1.0, "T, which makes the weights of all exits d_n if it is large", POSITIVE)

    def weigh(self, losses: Tensor, depths: Tensor) -> Tensor:
        """Return w_n of every token or text, (M, N); their sum over exits is 1."""
        return (depths.log() - losses / self.temperature).softmax(dim=-1)
