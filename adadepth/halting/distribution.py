"""The halting distribution: at which of N steps a unit stops, from one logit per step.

    lambda_n = sigmoid(z_n)                             probability of stopping at step n, given that it was reached
    log p_n  = log lambda_n + sum_{j<n} log(1 - lambda_j)

Banino et al. 2021 (PonderNet, arXiv 2107.05407), equation 2. The sum of p_n over N steps falls short of one by the
leftover prod_j (1 - lambda_j); a truncation says where it goes. Everything is float32 and in log space.

Shape legend: ... any leading dimensions, N steps. Steps count from 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adadepth import choices
from adadepth.halting.trace import traced

Truncation = choices.Truncation | str
KLDirection = choices.KLDirection | str

TRUNCATIONS = tuple(map(str, choices.Truncation))
KL_DIRECTIONS = tuple(map(str, choices.KLDirection))

# Logits beyond this mean certainty: sigmoid(80) is 1 and sigmoid(-80) is 2e-35, still a number in float32, so that
# logarithms stay finite and a lambda of 0 everywhere renormalises to the uniform distribution.
LOGIT_LIMIT = 80.0


@traced
@dataclass(frozen=True)
class HaltingDistribution:
    """Probabilities p_1..p_N of stopping at each step.

    Attributes:
        log_pmf: log p_n, float32, (..., N). The probabilities sum to one unless the truncation was `none`.
    """

    log_pmf: Tensor

    @property
    def pmf(self) -> Tensor:
        """p_n, (..., N)."""
        return self.log_pmf.exp()

    def cdf(self) -> Tensor:
        """Probability of having stopped by step n, (..., N)."""
        return self.pmf.cumsum(dim=-1)

    def expected_steps(self) -> Tensor:
        """sum_n n p_n, differentiable, (...). Without truncation the missing mass counts as 0 steps."""
        steps = torch.arange(1, self.log_pmf.shape[-1] + 1, device=self.log_pmf.device)
        return (steps * self.pmf).sum(dim=-1)

    def entropy(self) -> Tensor:
        """-sum_n p_n log p_n in nats, (...); a step without probability contributes 0."""
        return -_weighted(self.pmf, self.log_pmf)

    def quantile(self, q: float | Tensor) -> Tensor:
        """The first step n with cdf_n > q, else N; int64, (...). A tensor of levels q has shape (..., 1)."""
        return ((self.cdf() <= q).sum(dim=-1) + 1).clamp(max=self.log_pmf.shape[-1])

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw a step, int64, (...), by inversion of the cdf; missing mass falls to the last step.

        Args:
            generator: On the CPU whatever device the distribution is on, so that all devices draw alike.
        """
        levels = torch.rand(*self.log_pmf.shape[:-1], 1, generator=generator)
        return self.quantile(levels.to(self.log_pmf.device))


def halting_distribution(logits: Tensor, truncation: Truncation) -> HaltingDistribution:
    """The distribution that per-step halting logits define.

    Args:
        logits: z_n, (..., N), any floating point type; infinities stand for a lambda of exactly 0 or 1.
        truncation: What becomes of the leftover. `renormalise`: p_n / (1 - leftover), PonderNet's first option;
            `leftover`: all of it to the last step, as if lambda_N were 1; `none`: it is missing, as in PALBERT.
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
    return HaltingDistribution(log_pmf)


def halting_logits(probabilities: Tensor) -> Tensor:
    """Logits of given lambda_n, float32, same shape; 0 and 1 give the finite limits, with a gradient of zero."""
    probabilities = probabilities.float()
    inside = (probabilities > 0.0) & (probabilities < 1.0)
    # The inner `where` keeps log(0) out of the backward pass, which would turn a zero gradient into NaN.
    safe = torch.where(inside, probabilities, 0.5)
    return torch.where(inside, safe.log() - (-safe).log1p(), (probabilities - 0.5).sign() * LOGIT_LIMIT)


def geometric_prior(
    probability: float, steps: int, truncation: Truncation, device: torch.device | str | None = None
) -> HaltingDistribution:
    """PonderNet's prior p_G: the same lambda at every step, truncated like a posterior; (N,).

    Its mean is 1 / lambda without truncation, and less with it.

    Raises:
        ValueError: If the probability does not lie between 0 and 1, both excluded.
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability={probability} of a geometric prior must lie between 0 and 1, both excluded")
    logit = math.log(probability) - math.log1p(-probability)
    return halting_distribution(torch.full((steps,), logit, device=device), truncation)


def uniform_prior(steps: int, device: torch.device | str | None = None) -> HaltingDistribution:
    """The same probability 1 / N at every step, (N,): no step is preferred, so none is starved of gradients.

    Of a posterior that sums to one, KL(p || uniform) = log N - H(p): the divergence is an entropy bonus (Zhu et al.
    2025, Ouro, arXiv 2510.25741). The prior is exact over N steps, so there is nothing to truncate.
    """
    return HaltingDistribution(torch.full((steps,), -math.log(steps), device=device))


def halting_kl(posterior: HaltingDistribution, prior: HaltingDistribution, direction: KLDirection) -> Tensor:
    """KL(p || q) = sum_n p_n (log p_n - log q_n) in nats, (...); a step that p never takes contributes 0.

    Args:
        posterior: What the model says.
        prior: What it is drawn to; the leading dimensions broadcast.
        direction: `posterior_prior`: KL(posterior || prior), PonderNet's; `prior_posterior`: KL(prior || posterior),
            PALBERT's. They differ.
    """
    assert direction in KL_DIRECTIONS, direction
    p, q = (posterior, prior) if direction == "posterior_prior" else (prior, posterior)
    return _weighted(p.pmf, p.log_pmf - q.log_pmf)


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """sum_n weight_n value_n, where a weight of 0 silences an infinite value."""
    return (weights * torch.where(weights > 0.0, values, 0.0)).sum(dim=-1)
