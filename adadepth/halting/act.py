"""Adaptive computation time (ACT): the arithmetic of one halting step.

A unit accumulates a halting probability at every iteration and stops when the sum exceeds `1 - epsilon`:

    R_n = 1 - h_{n-1}                   if h_{n-1} + p_n > 1 - epsilon      (the unit halts now)
    w_n = p_n  while it runs,  R_n  at its last update,  0 afterwards

Graves 2016 (arXiv 1603.08983), equations 5 to 8, in the form that Universal Transformers (arXiv 1807.03819) and
Simoulin & Crabbé 2021 use. Everything here is float32, because in bfloat16 a sum of probabilities misses its threshold.

Shape legend: B batch, T tokens. All tensors are (B, T); sequence-level halting repeats one value along T.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adadepth.config import choices

CapRemainderLike = choices.CapRemainder | str
StateRuleLike = choices.StateRule | str


class ActState(NamedTuple):
    """Halting state of every token in ACT, float32: accumulated probability `h`, remainder `R` and updates `N`."""

    accumulated: Tensor
    remainders: Tensor
    updates: Tensor

    @property
    def running(self) -> Tensor:
        """Mask of the tokens that have not halted.

        The difference 1 - h is exact in float32, so a halted unit has `h` equal to 1.
        """
        return self.accumulated < 1.0


def init_act(valid: Tensor) -> ActState:
    """Return the initial ACT state of a batch, in which no token has run; padding starts as halted.

    Invalid units (padding) start as halted, so they never keep the loop running.
    """
    zeros = torch.zeros(valid.shape, dtype=torch.float32, device=valid.device)
    return ActState((~valid).float(), zeros, zeros)


def act_step(
    state: ActState,
    probability: Tensor,
    *,
    threshold: float,
    is_last: bool,
    cap_remainder: CapRemainderLike,
) -> tuple[ActState, Tensor]:
    """Update each token's halting sum, remainder and number of updates after one ACT iteration.

    Args:
        state: Halting sums before this iteration.
        probability: Halting probability p_n of this iteration, float32.
        threshold: Halting threshold, 1 - epsilon.
        is_last: Whether this iteration is the last one, L.
        cap_remainder: Remainder of a unit that reaches the cap without crossing the threshold.
            `reference`: no remainder, as in the code of Simoulin & Crabbé, so its ponder cost has no gradient;
            `penalty`: the missing mass 1 - h_L counts as its remainder in the cost, and only there;
            `forced`: it halts at the cap with weight R = 1 - h_{L-1}, as in Graves' definition.

    Returns:
        The new state, and the weights w_n of this iteration's output. They are 0 for units that had halted before.
    """
    running = state.running
    total = state.accumulated + probability
    continues = running & ~(total > threshold)  # written so that a NaN propagates
    if is_last and cap_remainder == "forced":
        continues = torch.zeros_like(running)

    # The remainder of a unit that had halted before is 0, because its h is 1.
    remaining = 1.0 - state.accumulated
    weight = torch.where(continues, probability, remaining)
    accumulated = torch.where(continues, total, 1.0)
    remainders = torch.where(continues, state.remainders, state.remainders + remaining)
    if is_last and cap_remainder == "penalty":
        remainders = torch.where(continues, 1.0 - total, remainders)
    return ActState(accumulated, remainders, state.updates + running), weight


def update_stream(rule: StateRuleLike, state: Tensor, output: Tensor, weight: Tensor, running: Tensor) -> Tensor:
    """Return the hidden states that the next ACT iteration reads, by the chosen state rule.

    Args:
        rule: `single`: x <- w y + (1 - w) x (Simoulin & Crabbé 2021; a halted unit is frozen bit for bit);
            `graves`: x <- y while running, then frozen ("copied", Universal Transformers section 2.2);
            `accumulated`, `basic`: x <- y for all units, halted or not, as the tensor2tensor code does.
        state: States x_{n-1} before this iteration, (B, T, H).
        output: Output y_n of the block, (B, T, H).
        weight: Weights w_n of the output, (B, T).
        running: Mask of the units that ran in this iteration, (B, T).
    """
    if rule == "single":
        return interpolate(state, output, weight)
    if rule == "graves":
        return torch.where(running.unsqueeze(-1), output, state)
    return output


def update_result(rule: StateRuleLike, result: Tensor, output: Tensor, weight: Tensor) -> Tensor:
    """Update the model's output, a weighted average of block outputs, after one ACT iteration.

    `graves` and `accumulated` sum w_n y_n (Graves 2016, equation 9); `basic` interpolates w y + (1 - w) result, which
    is what tensor2tensor's rule of that name intends (its code loses the parentheses).
    """
    if rule == "basic":
        return interpolate(result, output, weight)
    return result + _as_factor(weight, output) * output


def interpolate(state: Tensor, output: Tensor, weight: Tensor) -> Tensor:
    """Return the interpolation w y + (1 - w) x, which is exactly x where the weight w is 0."""
    return torch.lerp(state.to(output.dtype), output, _as_factor(weight, output))


def _as_factor(weight: Tensor, like: Tensor) -> Tensor:
    return weight.unsqueeze(-1).to(like.dtype)


def act_hazard(accumulated: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hazard lambda_n = p_n / (1 - h_{n-1}), at most 1, and the halting sum h_n, at most 1.

    These definitions give 1 - prod_{j <= n} (1 - lambda_j) = h_n. The halting sum is therefore the cdf over steps. The
    weights w_n of Graves 2016 with epsilon 0 are the probabilities of the steps. A unit halts at the step that is the
    quantile 1 - epsilon.

    Args:
        accumulated: Halting sum h_{n-1}, 0 before the first step, any shape.
        probability: Halting probability p_n, same shape.
    """
    survival = 1.0 - accumulated
    continues = survival > probability
    # Without the inner `where`, the unused quotient p / 0 of a unit that has halted makes every gradient NaN.
    hazard = torch.where(continues, probability / torch.where(continues, survival, 1.0), 1.0)
    return hazard, (accumulated + probability).clamp(max=1.0)
