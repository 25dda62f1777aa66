"""Halting distributions over steps, priors and KL (PonderNet), and targets for a halting head on a frozen model.

The targets follow from the losses l_n of the frozen model after every step:

    g_n = max(0, l_n - min_{m > n} l_m)       reduction of the loss by the best later step
    c_n = sigmoid(k (g_n - gamma))            target of continuing after step n; that of halting, lambda_n, is 1 - c_n

This is the second stage of Ouro (Zhu et al. 2025, arXiv 2510.25741), except that Ouro compares with the next step only.
If a solution takes several steps the loss is constant until the last of them, so here every later step counts.

Shape legend: ... any leading dimensions, N steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adadepth.config import choices
from adadepth.halting.trace import register_trace_part


def future_loss_reduction(losses: Tensor) -> Tensor:
    """Return how much the best later step lowers the loss, g_n >= 0 after each step n < N, (..., N) to (..., N - 1)."""
    best_from_here_on = losses.flip(-1).cummin(dim=-1).values.flip(-1)
    return (losses[..., :-1] - best_from_here_on[..., 1:]).clamp(min=0.0)


def continuation_targets(losses: Tensor, slope: float, threshold: float) -> Tensor:
    """Return training targets of a halting head: probabilities of continuing after each step, without gradient.

    Args:
        losses: Task losses l_n of an example after every step, (..., N).
        slope: Slope k of the target around the threshold.
        threshold: Threshold gamma of the loss reduction that justifies more steps.

    Returns:
        Probabilities, (..., N - 1).
    """
    return torch.sigmoid(slope * (future_loss_reduction(losses.detach().float()) - threshold))


def continuation_losses(halting_logits: Tensor, losses: Tensor, slope: float, threshold: float) -> Tensor:
    """Return a halting head's loss: mean binary cross-entropy of lambda_n = sigmoid(z_n) with target 1 - c_n, (...).

    The last step has no target because no step follows it. The loss of a single step is therefore 0.
    """
    halt = 1.0 - continuation_targets(losses, slope, threshold)
    logits = halting_logits[..., :-1].float()
    entropies = nn.functional.binary_cross_entropy_with_logits(logits, halt, reduction="none")
    return entropies.sum(dim=-1) / max(halt.shape[-1], 1)


TruncationLike = choices.Truncation | str
KLDirectionLike = choices.KLDirection | str

TRUNCATIONS = tuple(map(str, choices.Truncation))
KL_DIRECTIONS = tuple(map(str, choices.KLDirection))

# Logits beyond this mean certainty: sigmoid(80) is 1 and sigmoid(-80) is 2e-35, still a number in float32, so that
# logarithms stay finite and a lambda of 0 everywhere renormalises to the uniform distribution.
LOGIT_LIMIT = 80.0
PALBERT_REST = 0.05  # epsilon of PALBERT's code, `palbert_fast.py`


@register_trace_part
@dataclass(frozen=True)
class HaltingDistribution:
    """Probability distribution p_1..p_N over the step at which a model stops.

    Attributes:
        log_pmf: Log-probabilities log p_n, float32, (..., N). The probabilities sum to one unless the truncation was
            `none` or `palbert`.
    """

    log_pmf: Tensor

    @property
    def pmf(self) -> Tensor:
        """The probability p_n of halting at each step, (..., N)."""
        return self.log_pmf.exp()

    def cdf(self) -> Tensor:
        """Return the probability of having stopped by step n, (..., N)."""
        return self.pmf.cumsum(dim=-1)

    def expected_steps(self) -> Tensor:
        """Return the expected number of steps sum_n n p_n, differentiable, (...).

        Without truncation, the missing probability counts as 0 steps.
        """
        steps = torch.arange(1, self.log_pmf.shape[-1] + 1, device=self.log_pmf.device)
        return (steps * self.pmf).sum(dim=-1)

    def entropy(self) -> Tensor:
        """Return the entropy -sum_n p_n log p_n in nats, (...). A step with probability 0 contributes 0."""
        return -_sum_weighted(self.pmf, self.log_pmf)

    def quantile(self, q: float | Tensor) -> Tensor:
        """Return the first step n at which the cumulative probability exceeds q, or N if none does; int64, (...).

        A tensor of levels q has shape (..., 1).
        """
        return ((self.cdf() <= q).sum(dim=-1) + 1).clamp(max=self.log_pmf.shape[-1])


def halting_distribution(logits: Tensor, truncation: TruncationLike) -> HaltingDistribution:
    """Return the probability distribution over exit steps that a model's halting logits define.

    Args:
        logits: Halting logits z_n, (..., N), any floating-point type. Infinite logits give a lambda of exactly 0 or 1.
        truncation: Treatment of the leftover probability after step N. `renormalise`: every p_n is divided by 1 -
            leftover, PonderNet's first option; `leftover`: the last step gets all of it, as if lambda_N were 1; `none`:
            it is missing; `palbert`: it is missing, and p_n is the constant 0.05 / N after the cumulative probability
            has exceeded 0.95, as in PALBERT's code, so that p need not sum to 1.
    """
    assert truncation in TRUNCATIONS, truncation
    logits = logits.float().clamp(-LOGIT_LIMIT, LOGIT_LIMIT)
    log_survival = nn.functional.logsigmoid(-logits).cumsum(dim=-1)
    log_reached = nn.functional.pad(log_survival[..., :-1], (1, 0))
    log_pmf = nn.functional.logsigmoid(logits) + log_reached
    if truncation == "renormalise":
        log_pmf = log_pmf.log_softmax(dim=-1)
    elif truncation == "leftover":
        log_pmf = torch.cat([log_pmf[..., :-1], log_reached[..., -1:]], dim=-1)
    elif truncation == "palbert":
        # Replaced probabilities add to the sum, so a step after the first replaced one is replaced, too.
        is_replaced = 1.0 - log_reached.exp() > 1.0 - PALBERT_REST
        log_pmf = log_pmf.masked_fill(is_replaced, math.log(PALBERT_REST / logits.shape[-1]))
    return HaltingDistribution(log_pmf)


def halting_logits(probabilities: Tensor) -> Tensor:
    """Return the logits log(lambda / (1 - lambda)) of halting probabilities, float32, same shape.

    Probabilities of 0 and 1 give large finite logits with a gradient of zero.
    """
    probabilities = probabilities.float()
    inside = (probabilities > 0.0) & (probabilities < 1.0)
    # The inner `where` keeps log(0) out of the backward pass, which would turn a zero gradient into NaN.
    safe = torch.where(inside, probabilities, 0.5)
    return torch.where(inside, safe.log() - (-safe).log1p(), (probabilities - 0.5).sign() * LOGIT_LIMIT)


def geometric_prior(
    probability: float, steps: int, truncation: TruncationLike, device: torch.device | str | None = None
) -> HaltingDistribution:
    """Return PonderNet's prior over exit steps: a geometric distribution with parameter lambda, cut at N steps, (N,).

    Its mean is 1 / lambda without truncation, and less with it.

    Raises:
        ValueError: If the probability does not lie between 0 and 1, both excluded.
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability={probability} of a geometric prior must lie between 0 and 1, both excluded")
    logit = math.log(probability) - math.log1p(-probability)
    return halting_distribution(torch.full((steps,), logit, device=device), truncation)


def uniform_prior(steps: int, device: torch.device | str | None = None) -> HaltingDistribution:
    """Return the uniform prior over exit steps, probability 1 / N at each, (N,), under which every step gets gradients.

    For a posterior that sums to one, KL(p || uniform) = log N - H(p), so that the divergence is an entropy bonus (Zhu
    et al. 2025, Ouro, arXiv 2510.25741). The prior is exact over N steps, so there is nothing to truncate.
    """
    return HaltingDistribution(torch.full((steps,), -math.log(steps), device=device))


def halting_kl(posterior: HaltingDistribution, prior: HaltingDistribution, direction: KLDirectionLike) -> Tensor:
    """Return KL(p || q) = sum_n p_n (log p_n - log q_n) in nats, (...). A step with p_n = 0 contributes 0.

    Args:
        posterior: Halting distribution of the model.
        prior: Prior distribution. Its leading dimensions broadcast.
        direction: Direction of the divergence. `posterior_prior` is KL(posterior || prior), as in PonderNet.
            `prior_posterior` is KL(prior || posterior), as in PALBERT. The two differ.
    """
    assert direction in KL_DIRECTIONS, direction
    p, q = (posterior, prior) if direction == "posterior_prior" else (prior, posterior)
    return _sum_weighted(p.pmf, p.log_pmf - q.log_pmf)


def _sum_weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Return sum_n weight_n value_n, treating a weight of 0 times infinity as 0."""
    return (weights * torch.where(weights > 0.0, values, 0.0)).sum(dim=-1)
