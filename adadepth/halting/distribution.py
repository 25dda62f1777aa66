"""Is it worth going on? Targets for a halting unit that is trained alone, from the losses of a finished model.

    g_n = max(0, l_n - min_{m > n} l_m)       what the best of the further steps would save, in units of the loss
    c_n = sigmoid(k (g_n - gamma))            target of going on after step n; that of halting, lambda_n, is 1 - c_n

After the second stage of Ouro (Zhu et al. 2025, arXiv 2510.25741), which asks whether one more step lowers
the loss. Where a solution takes several steps the loss stands still until the last of them, so here any later step
counts.

Shape legend: ... any leading dimensions, N steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adadepth.halting.trace import traced
from adadepth.settings import choices


def further_gain(losses: Tensor) -> Tensor:
    """How much lower the loss gets after each step but the last, g_n >= 0: (..., N) to (..., N - 1)."""
    best_from_here_on = losses.flip(-1).cummin(dim=-1).values.flip(-1)
    return (losses[..., :-1] - best_from_here_on[..., 1:]).clamp(min=0.0)


def continuation_targets(losses: Tensor, slope: float, threshold: float) -> Tensor:
    """Target probability of going on after each step but the last, without gradient: (..., N) to (..., N - 1).

    Args:
        losses: l_n, the task loss of an example after every step.
        slope: k, how sharply the target turns from stopping to going on.
        threshold: gamma, the gain that is worth further steps.
    """
    return torch.sigmoid(slope * (further_gain(losses.detach().float()) - threshold))


def continuation_losses(halting_logits: Tensor, losses: Tensor, slope: float, threshold: float) -> Tensor:
    """Binary cross-entropy of lambda_n = sigmoid(z_n) with its target 1 - c_n, mean over the steps: (..., N) to (...).

    The last step is left out, because nobody can go on after it.
    """
    halt = 1.0 - continuation_targets(losses, slope, threshold)
    decided = halting_logits[..., :-1].float()
    return nn.functional.binary_cross_entropy_with_logits(decided, halt, reduction="none").mean(dim=-1)


TruncationLike = choices.Truncation | str
KLDirectionLike = choices.KLDirection | str

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
        """The probability p_n of halting at each step, (..., N)."""
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


def halting_distribution(logits: Tensor, truncation: TruncationLike) -> HaltingDistribution:
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
    probability: float, steps: int, truncation: TruncationLike, device: torch.device | str | None = None
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


def halting_kl(posterior: HaltingDistribution, prior: HaltingDistribution, direction: KLDirectionLike) -> Tensor:
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
