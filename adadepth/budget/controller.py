"""A smooth stand-in for a hard depth: what a budget's price is paid on.

A hard depth N counts the steps that a unit survives, N = 1 + sum_{1 <= n < N} 1[s_n > 0] with the survival s_n, and has
no gradient. Its smooth form raises the survivals to a small power instead:

    S = 1 + sum_{1 <= n < N} s_n^a,        0 < a <= 1

With a = 1 this is the expected depth, and a model can lower it while every unit still runs to the cap (many small
probabilities, each of them far from a decision); with a -> 0 it is N itself. a = 0.3 was near enough to N for a
controller to hold N, and smooth enough to train (docs/decisions/0013).

Shape legend: ... any leading dimensions, N steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EXPONENT = 0.3
# Below this a survival is as good as none: the power's gradient, a s^(a-1), has no bound at zero.
_SMALLEST = 1e-3


def smooth_depth(survival: Tensor, ran: Tensor | None = None, exponent: float = EXPONENT) -> Tensor:
    """The sum of powered survivals of every unit, float32, (...).

    Args:
        survival: s_n, the share of a unit that goes on after step n, (..., N); for ACT 1 - h_n, for a distribution over
            steps or layers 1 - cdf_n.
        ran: Steps after which the unit really went on, boolean, (..., N); None: all, for units that run every step.
        exponent: a.
    """
    powered = survival.float().clamp(min=_SMALLEST, max=1.0) ** exponent
    return powered.sum(dim=-1) if ran is None else torch.where(ran, powered, 0.0).sum(dim=-1)


SMOOTHING = 0.95
INTEGRAL = 3e-3
PROPORTIONAL = 0.3
LIMIT = 1.0


@dataclass(frozen=True)
class Response:
    """How a controller answers what it measures.

    Attributes:
        smoothing: beta; 0 where measured depths are not noisy.
        integral: k_i.
        proportional: k_p. Where depth follows the price with a delay, the integral alone swings around the target.
    """

    smoothing: float = SMOOTHING
    integral: float = INTEGRAL
    proportional: float = PROPORTIONAL


@dataclass(frozen=True)
class BudgetSchedule:
    """What a budget asks of every update, by the share of all updates that were made before it.

    In `grow` nobody halts and everybody gets the same depth, which rises from `grow_from` to full depth, slowly at
    first (with the square of the progress): a long recurrence learns that way what it does not learn at full depth from
    the start, and most of its updates are cheap. Then the target is full depth for
    `hold`, because depth that was never used is hard to win back; falls to `target` in `ramp`; and stays.

    Attributes:
        target: What the user asked for.
        full: Full depth, in the same unit.
        grow: This and the next two are shares of all updates.
        hold: See above.
        ramp: See above.
        grow_from: In updates.
        max_updates: Full depth in updates.
    """

    target: float
    full: float
    max_updates: int
    grow: float = 0.0
    hold: float = 0.0
    ramp: float = 0.0
    grow_from: int = 1

    def target_at(self, progress: float) -> float:
        """The target of an update; while depth grows, what everybody gets."""
        if (forced := self.forced_at(progress)) is not None:
            return self.full * forced / self.max_updates
        falling = progress - self.grow - self.hold
        if falling < 0:
            return self.full
        if falling >= self.ramp:
            return self.target
        return self.full + (self.target - self.full) * falling / self.ramp

    def forced_at(self, progress: float) -> int | None:
        """Updates that everybody gets in an update; None once tokens halt."""
        if progress >= self.grow:
            return None
        return round(self.grow_from + (self.max_updates - self.grow_from) * (progress / self.grow) ** 2)


class BudgetController:
    """Holds the mean depth at its target.

    Args:
        schedule: The target of every update.
        gain: Multiplies both gains.
        device: Where depths are measured.
        response: None: that of the constants above.
    """

    def __init__(
        self,
        schedule: BudgetSchedule,
        gain: float = 1.0,
        device: torch.device | str = "cpu",
        response: Response | None = None,
    ) -> None:
        self.schedule = schedule
        self.gain = gain
        self.response = response or Response()
        self._state = torch.zeros(3, dtype=torch.float64, device=device)  # lambda, smoothed m, m
        self._begun = torch.zeros((), dtype=torch.bool, device=device)

    @torch.no_grad()
    def advance(self, total: Tensor, count: Tensor, progress: float) -> None:
        """Take in the depth of one update.

        Args:
            total: Sum of the depths of all its units, over micro-batches and processes.
            count: How many those are; 0: an update that no depth was counted in, which changes nothing.
            progress: Share of all updates that were made before it.
        """
        multiplier, smoothed, _ = self._state.unbind()
        is_counted = count > 0
        measured = total.double() / count.double()
        if self.schedule.forced_at(progress) is not None:
            self._state = torch.where(is_counted, torch.stack([multiplier, measured, measured]), self._state)
            return
        followed = self.response.smoothing * smoothed + (1.0 - self.response.smoothing) * measured
        smoothed = torch.where(self._begun, followed, measured)
        error = (smoothed - self.schedule.target_at(progress)) / self.schedule.full
        multiplier = (multiplier + self.gain * self.response.integral * error).clamp(-LIMIT, LIMIT)
        self._state = torch.where(is_counted, torch.stack([multiplier, smoothed, measured]), self._state)
        self._begun = self._begun | is_counted

    def price(self, progress: float) -> Tensor:
        """What an update that begins after this share of all updates pays for a unit of smooth depth; a scalar."""
        multiplier = self._state[0]
        return torch.where(self._begun, multiplier + self._proportional(progress), multiplier).float()

    def reward(self, progress: float) -> Tensor:
        """The proportional part alone, where it is negative: what brings back depth that has fallen below the target.

        For where nothing can be too deep. The integral, built up on the way there, would go on pushing.
        """
        return (self._begun * self._proportional(progress).clamp(max=0.0)).float()

    def _proportional(self, progress: float) -> Tensor:
        """k_p (m - t) / D, times the gain."""
        error = (self._state[2] - self.schedule.target_at(progress)) / self.schedule.full
        return self.gain * self.response.proportional * error

    def figures(self, progress: float) -> dict[str, float]:
        """What a log tells: target, measured depth and multiplier, by name."""
        multiplier, smoothed, _ = self._state.tolist()
        return {"target": self.schedule.target_at(progress), "measured": smoothed, "multiplier": multiplier}

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON values, exactly."""
        return {"state": self._state.tolist(), "begun": bool(self._begun)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._state = self._state.new_tensor(state["state"])
        self._begun = self._begun.new_tensor(bool(state["begun"]))
