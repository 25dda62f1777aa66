"""AdamATan2, with which the published code of HRM and TRM trains, and the sign descent of its vectors of puzzles.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
    w <- (1 - lr wd) w - lr / (1 - b1^t) atan2(m, sqrt(v / (1 - b2^t)))

atan2 in place of a quotient (Everett et al. 2024, arXiv 2407.05872) is bounded, blind to the scale of gradients, and
needs no epsilon. The first moment is corrected outside of it (imoneoi/adam-atan2, which needs CUDA); libraries that
correct it inside take other first steps. Groups `by_sign` have no moments:

    w <- (1 - lr wd) w - lr sign(g)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class AdamAtan2(Optimizer):
    """See the module.

    Args:
        groups: Of parameters; each may have its own `lr`, `weight_decay` and `by_sign`.
        lr: Learning rate.
        betas: b1 and b2.
        weight_decay: wd.
    """

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], weight_decay: float = 0.0
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "by_sign": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make an update; `closure` computes the loss anew, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in (weight for weight in group["params"] if weight.grad is not None):
                direction = weight.grad.sign() if group["by_sign"] else self._direction(weight, group["betas"])
                weight.mul_(1.0 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])
        return loss

    def _direction(self, weight: Tensor, betas: tuple[float, float]) -> Tensor:
        """What the moments of a parameter say after they have taken in its gradient."""
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None
        if not state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
        state["step"] += 1
        first, second = (1.0 - beta ** state["step"] for beta in betas)
        state["exp_avg"].lerp_(gradient, 1.0 - betas[0])
        state["exp_avg_sq"].mul_(betas[1]).addcmul_(gradient, gradient, value=1.0 - betas[1])
        return state["exp_avg"].atan2((state["exp_avg_sq"] / second).sqrt()) / first
