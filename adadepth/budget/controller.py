"""PI controller that holds the mean depth of a model at a target during training.

The controller has two actuators. Usually it changes the weight of a smooth depth in the loss. If depth is still far
from the target after the schedule has reached the target, it moves the halting bias instead. The reason is that the
probabilities of a saturated halting unit have no gradient. Wang et al. 2024 (arXiv 2408.15664) balance the load of
experts with a similar bias.

A hard depth N counts the steps that a unit survives, N = 1 + sum_{1 <= n < N} 1[s_n > 0]. The survival s_n is the share
of the unit that continues after step n. The hard depth has no gradient. Its smooth form raises the survivals to a small
power instead:

    S = 1 + sum_{1 <= n < N} s_n^a,        0 < a <= 1

With a = 1 this is the expected depth. A model can lower it while every unit still runs to the cap, because many small
probabilities reduce the sum without a single decision to halt. With a -> 0 it is N itself. With a = 0.3 the smooth
depth was close enough to N for a controller to hold N, and smooth enough to train (docs/decisions/0013).

Shape legend: ... any leading dimensions, N steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EXPONENT = 0.3
# Survivals are clamped here, because the gradient of the power, a s^(a-1), has no bound at zero.
_SMALLEST = 1e-3


def smooth_depth(survival: Tensor, ran: Tensor | None = None, exponent: float = EXPONENT) -> Tensor:
    """Return a differentiable approximation of the number of updates per token, sum_n s_n^a, float32, (...).

    Args:
        survival: Survivals s_n, the share of a unit that continues after step n, (..., N). They are 1 - h_n for ACT,
            and 1 - cdf_n for a distribution over steps or layers.
        ran: Mask of the steps after which the unit continued, boolean, (..., N). None means that every unit runs every
            step.
        exponent: Exponent a of the survivals.
    """
    powered = survival.float().clamp(min=_SMALLEST, max=1.0) ** exponent
    return powered.sum(dim=-1) if ran is None else torch.where(ran, powered, 0.0).sum(dim=-1)


SMOOTHING = 0.95
INTEGRAL = 3e-3
PROPORTIONAL = 0.3
LIMIT = 1.0
# Shares of full depth by which depth misses the final target before the bias moves. Below the target the loss rewards
# depth, which is enough unless depth has collapsed.
FAR_BELOW, FAR_ABOVE = 0.3, 0.15
# Logits that the bias moves a step, per share of full depth.
BIAS_GAIN = 1.0


@dataclass(frozen=True)
class Response:
    """Gains of the PI controller, and the smoothing factor of its measured depth.

    Attributes:
        smoothing: Smoothing beta of the measured depth, or 0 for no smoothing.
        integral: Integral gain k_i.
        proportional: Proportional gain k_p. With the integral alone, the depth oscillates if it follows the multiplier
            with a delay.
    """

    smoothing: float = SMOOTHING
    integral: float = INTEGRAL
    proportional: float = PROPORTIONAL


@dataclass(frozen=True)
class BudgetSchedule:
    """Schedule of the target depth over training progress, the share of optimiser steps already made.

    The schedule has three phases. In `grow` no unit halts and all units get the same depth, which rises from
    `grow_from` to full depth with the square of the progress. A long recurrence then learns what it does not learn at
    full depth from the start, and most steps are cheap. In `hold` the target is full depth, because unused depth is
    hard to win back. In `ramp` the target falls to `target`, where it stays.

    Attributes:
        target: Target depth that the user configured.
        full: Full depth, in the same unit as `target`.
        grow: Share of all optimiser steps in which depth grows.
        hold: Share of all optimiser steps at full depth.
        ramp: Share of all optimiser steps in which the target falls.
        grow_from: Depth at the start of `grow`, in updates.
        max_updates: Full depth, in updates.
    """

    target: float
    full: float
    max_updates: int
    grow: float = 0.0
    hold: float = 0.0
    ramp: float = 0.0
    grow_from: int = 1

    def compute_target(self, progress: float) -> float:
        """Return the target depth at the given training progress."""
        if (forced := self.compute_forced_depth(progress)) is not None:
            return self.full * forced / self.max_updates
        falling = progress - self.grow - self.hold
        if falling < 0:
            return self.full
        if falling >= self.ramp:
            return self.target
        return self.full + (self.target - self.full) * falling / self.ramp

    def compute_forced_depth(self, progress: float) -> int | None:
        """Return the depth forced on all tokens in the growth phase, in updates, or None after that phase."""
        if progress >= self.grow:
            return None
        return round(self.grow_from + (self.max_updates - self.grow_from) * (progress / self.grow) ** 2)


class BudgetController:
    """PI controller that holds the mean depth of training at a target depth.

    Args:
        schedule: Schedule of the target depth.
        gain: Factor that multiplies both gains.
        device: Device on which depths are measured.
        response: Gains and smoothing, or None for the defaults.
        moves_bias: Whether the halting bias follows `compute_bias_shift`. While the bias moves, the loss term is 0.
    """

    def __init__(
        self,
        schedule: BudgetSchedule,
        gain: float = 1.0,
        device: torch.device | str = "cpu",
        response: Response | None = None,
        moves_bias: bool = False,
    ) -> None:
        self.schedule = schedule
        self.gain = gain
        self.response = response or Response()
        self.moves_bias = moves_bias
        self._state = torch.zeros(3, dtype=torch.float64, device=device)  # lambda, smoothed m, m
        self._begun = torch.zeros((), dtype=torch.bool, device=device)

    @torch.no_grad()
    def advance(self, total: Tensor, count: Tensor, progress: float) -> None:
        """Update the controller with the mean depth measured in one optimiser step.

        Args:
            total: Sum of the depths of all units, over all micro-batches and processes.
            count: Number of these units. If it is 0, nothing changes.
            progress: Share of all optimiser steps made before this one.
        """
        multiplier, smoothed, _ = self._state.unbind()
        is_counted = count > 0
        measured = total.double() / count.double()
        if self.schedule.compute_forced_depth(progress) is not None:
            self._state = torch.where(is_counted, torch.stack([multiplier, measured, measured]), self._state)
            return
        followed = self.response.smoothing * smoothed + (1.0 - self.response.smoothing) * measured
        smoothed = torch.where(self._begun, followed, measured)
        error = (smoothed - self.schedule.compute_target(progress)) / self.schedule.full
        error = torch.where(self._is_far(measured, progress), 0.0, error)
        multiplier = (multiplier + self.gain * self.response.integral * error).clamp(-LIMIT, LIMIT)
        self._state = torch.where(is_counted, torch.stack([multiplier, smoothed, measured]), self._state)
        self._begun = self._begun | is_counted

    def price(self, progress: float) -> Tensor:
        """Return the current weight of the depth term in the loss, a scalar."""
        multiplier = self._state[0]
        return torch.where(self._begun, multiplier + self._proportional(progress), multiplier).float()

    def reward(self, progress: float) -> Tensor:
        """Return a loss weight, zero or negative, that rewards depth while the measured depth is below the target.

        It is used in training stages in which no depth is too large. The integral would keep growing in these stages.
        """
        return (self._begun * self._proportional(progress).clamp(max=0.0)).float()

    def _proportional(self, progress: float) -> Tensor:
        """Return the proportional term of the PI controller, gain k_p (m - t) / D, or 0 while the bias controls depth.

        See `_compute_error` for the symbols.
        """
        proportional = self.gain * self.response.proportional * self._compute_error(progress)
        return torch.where(self._is_far(self._state[2], progress), 0.0, proportional)

    def compute_bias_shift(self, progress: float) -> Tensor:
        """Return the change of the halting bias before the next optimiser step, in logits, a scalar.

        The shift is k_b (m - t) / D, for measured depth m, target t and full depth D, if the schedule has reached the
        final target and depth is far from it. Otherwise it is 0.
        """
        is_far = self._begun & self._is_far(self._state[2], progress)
        return torch.where(is_far, BIAS_GAIN * self._compute_error(progress), 0.0).float()

    def _compute_error(self, progress: float) -> Tensor:
        """Return the relative error (m - t) / D of the measured depth m, for target depth t and full depth D."""
        return (self._state[2] - self.schedule.compute_target(progress)) / self.schedule.full

    def _is_far(self, measured: Tensor, progress: float) -> Tensor:
        """Return whether the depth is so far from its final target that the halting bias, not the loss, corrects it.

        While the target falls, only the loss moves depth, because the loss treats tokens differently and a bias shifts
        all of them.
        """
        if not self.moves_bias or self.schedule.compute_target(progress) != self.schedule.target:
            return torch.zeros_like(self._begun)
        error = (measured - self.schedule.target) / self.schedule.full
        return (error < -FAR_BELOW) | (error > FAR_ABOVE)

    def figures(self, progress: float) -> dict[str, float]:
        """Return the controller's values to log: target depth, measured depth and multiplier."""
        multiplier, smoothed, _ = self._state.tolist()
        return {"target": self.schedule.compute_target(progress), "measured": smoothed, "multiplier": multiplier}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the budget controller as JSON values, without loss of precision."""
        return {"state": self._state.tolist(), "begun": bool(self._begun)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the budget controller from a state that `state_dict` returned."""
        self._state = self._state.new_tensor(state["state"])
        self._begun = self._begun.new_tensor(bool(state["begun"]))
