"""Optimizers (AdamW, Adam, AdamATan2, LAMB, Muon), parameter groups and learning-rate schedules.

The published code of HRM and TRM trains with AdamATan2:

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
    w <- (1 - lr wd) w - lr / (1 - b1^t) atan2(m, sqrt(v / (1 - b2^t)))

atan2 in place of a quotient (Everett et al. 2024, arXiv 2407.05872) is bounded, invariant to the scale of gradients,
and needs no epsilon. The bias of the first moment is corrected outside of atan2, as in imoneoi/adam-atan2, which needs
CUDA. Libraries that correct it inside atan2 make different first steps. Groups `by_sign`, such as the puzzle embeddings
of TRM, have no moments:

    w <- (1 - lr wd) w - lr sign(g)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from adadepth.config import TrainerConfig
from adadepth.config.experiment import Optimizer, Schedule
from adadepth.metrics.directions import prefers_greater
from adadepth.runtime.console import say
from adadepth.runtime.distributed import is_main_process
from adadepth.training.muon import build_muon


class AdamAtan2(torch.optim.Optimizer):
    """AdamATan2 optimizer, with sign descent for parameter groups that are marked `by_sign`.

    Args:
        groups: Groups of parameters, optionally with `lr`, `weight_decay` and `by_sign`.
        lr: Learning rate.
        betas: Decay rates b1 and b2 of the moments.
        weight_decay: Weight decay wd.
    """

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], weight_decay: float = 0.0
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "by_sign": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make an optimiser step; if `closure` is given, call it to recompute the loss, and return the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in (weight for weight in group["params"] if weight.grad is not None):
                direction = weight.grad.sign() if group["by_sign"] else self._update_moments(weight, group["betas"])
                weight.mul_(1.0 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])
        return loss

    def _update_moments(self, weight: Tensor, betas: tuple[float, float]) -> Tensor:
        """Update a parameter's moments with its gradient, and return the direction of the update."""
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None
        if not state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
        state["step"] += 1
        first, second = (1.0 - beta ** state["step"] for beta in betas)
        state["exp_avg"].lerp_(gradient, 1.0 - betas[0])
        state["exp_avg_sq"].mul_(betas[1]).addcmul_(gradient, gradient, value=1.0 - betas[1])
        return state["exp_avg"].atan2((state["exp_avg_sq"] / second).sqrt()) / first


def parameter_groups(
    model: Any, trainer: TrainerConfig, extra_groups: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Group parameters by weight decay, sign descent and learning rate.

    Weight decay applies to matrices, and to vectors (biases, norms) only with `decay_vectors`. It never applies to the
    parameters that `model.no_weight_decay()` names.

    Args:
        model: A `DepthModel`.
        trainer: Settings of the trainer.
        extra_groups: Groups to append unchanged. Their parameters are in no other group.
    """
    excluded = {id(parameter) for group in extra_groups for parameter in group["params"]}
    without_decay, multipliers = model.no_weight_decay(), model.learning_rate_multipliers()
    signed = model.descending_by_sign() if trainer.optimizer is Optimizer.adam_atan2 else set()
    groups: dict[tuple[bool, bool, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in excluded:
            decays = name not in without_decay and (parameter.ndim >= 2 or trainer.decay_vectors)
            groups.setdefault((decays, name in signed, multipliers.get(name, 1.0)), []).append(parameter)
    default_groups = [
        {
            "params": groups[decays, by_sign, multiplier],
            "by_sign": by_sign,
            "lr": trainer.learning_rate * multiplier,
            "weight_decay": trainer.weight_decay if decays else 0.0,
            "decays": decays,
        }
        for decays, by_sign, multiplier in sorted(groups, key=lambda kind: (not kind[0], *kind[1:]))
    ]
    return [*default_groups, *extra_groups]


def build_optimizer(
    model: Any, trainer: TrainerConfig, extra_groups: Sequence[dict[str, Any]] = ()
) -> torch.optim.Optimizer:
    """Build the optimizer of a run: AdamW, Adam, AdamATan2, Muon with AdamW, or LAMB.

    LAMB has the recipe for ALBERT (You et al. 2020, arXiv 1904.00962, version 3).

    Adam (Kingma & Ba 2015) adds the weight decay to the gradient, and so to the moments, as in recipes older than
    AdamW.

    `lamb` follows the published recipe. The decay is part of the update before the trust ratio is computed. Vectors get
    neither decay nor layer adaptation. There is no bias correction, and the ratio of the norms of weights and update
    is not clamped. The arguments are those of `parameter_groups`.
    """
    groups = parameter_groups(model, trainer, extra_groups)
    betas = trainer.adam_beta1, trainer.adam_beta2
    if trainer.optimizer is Optimizer.adam_atan2:
        return AdamAtan2(groups, trainer.learning_rate, betas)
    common: dict[str, Any] = {"lr": trainer.learning_rate, "betas": betas, "eps": trainer.adam_epsilon}
    if trainer.optimizer != Optimizer.lamb:
        fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group["params"])
        if trainer.optimizer is Optimizer.muon:
            return build_muon(model, groups, {**common, "fused": fused}, trainer.muon_learning_rate)
        kind = torch.optim.Adam if trainer.optimizer == Optimizer.adam else torch.optim.AdamW
        return kind(groups, **common, fused=fused)

    from adadepth.training.lamb import ShardableLamb

    for group in groups:
        group["adam"] = not group["decays"]
    # `adam_debias` is the library's name for leaving the step size as it is, without the first moment's correction.
    optimizer = ShardableLamb(groups, **common, weight_decouple=False, adam_debias=True)
    optimizer.clamp = math.inf  # the library bounds ||w|| at 10
    return optimizer


class PlateauSchedule(ReduceLROnPlateau):
    """Schedule `plateau` of torch, for metrics of any sign.

    torch multiplies the best value by 1 - threshold or 1 + threshold. A negative best value then becomes worse, so that
    a constant metric would count as improving for ever, and the learning rate would never fall.
    """

    def _is_better(self, a: float, best: float) -> bool:
        margin = self.threshold * abs(best) if math.isfinite(best) else 0.0
        return a < best - margin if self.mode == "min" else a > best + margin


def build_schedule(optimizer: torch.optim.Optimizer, trainer: TrainerConfig, total_steps: int) -> LRScheduler:
    """Build the learning-rate schedule over `total_steps` optimiser steps.

    The schedule `plateau` does not depend on the number of steps. It halves the learning rate when the metric stops
    improving. A warm-up that is not over before the last step is a warning.
    """
    if trainer.schedule is Schedule.plateau:
        assert trainer.plateau_patience is not None, "validated"
        return PlateauSchedule(
            optimizer,
            mode="max" if prefers_greater(trainer.metric_for_best_model, trainer.greater_is_better) else "min",
            factor=0.5,
            patience=trainer.plateau_patience,
            min_lr=trainer.plateau_min_lr,
        )
    warmup = math.ceil(trainer.warmup_steps if trainer.warmup_steps >= 1 else trainer.warmup_steps * total_steps)
    if 0 < total_steps <= warmup and is_main_process():
        length = f"warning: trainer.warmup_steps={trainer.warmup_steps:g}: training has only {total_steps:,} steps"
        say(f"{length}, so the rate never reaches trainer.learning_rate={trainer.learning_rate:g}", wraps=True)
    factor = partial(_FACTORS[trainer.schedule], warmup=warmup, total=max(total_steps, 1))
    scheduled = partial(_apply_warmup, factor=factor, warmup=warmup)
    constant = partial(_constant, warmup=0, total=0)
    return LambdaLR(optimizer, [constant if group.get("constant") else scheduled for group in optimizer.param_groups])


def _apply_warmup(step: int, factor: Callable[[int], float], warmup: int) -> float:
    return step / warmup if step < warmup else factor(step)


def _linear(step: int, warmup: int, total: int) -> float:
    return max(0.0, (total - step) / max(total - warmup, 1))


def _reference_linear(step: int, warmup: int, total: int) -> float:
    """Return the factor of a linear decay counted from step 0, as in the code of Simoulin & Crabbé.

    The rate therefore drops slightly at the end of the warm-up.
    """
    return max(0.0, 1.0 - step / total)


def _cosine(step: int, warmup: int, total: int) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warmup) / max(total - warmup, 1))))


def _constant(step: int, warmup: int, total: int) -> float:
    return 1.0


_FACTORS = {
    Schedule.linear: _linear,
    Schedule.reference_linear: _reference_linear,
    Schedule.cosine: _cosine,
    Schedule.constant: _constant,
}
