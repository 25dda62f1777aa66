"""Exit rules that read what a model says of itself: halting probabilities, judgements of its answer, its states.

Shape legend: A rows that still run, D width of a state. Steps count from 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from adadepth.halting.exit_decisions import (
    CORRECTNESS,
    HALTING_SIGNAL,
    LOGITS,
    STATES,
    ExitRule,
    StepView,
    all_rows,
)

# ---- Halting probabilities, and judgements


@dataclass(frozen=True)
class Quantile(ExitRule):
    """Exit at the first step with cdf_n > q (Q-exit, Balagansky & Gavrilov 2022, arXiv 2204.03276).

    The cdf is the online one, 1 - prod_{j<=n} (1 - lambda_j): how the distribution will be truncated at its end is not
    known yet. The memory is that product, the probability of still running.
    """

    name = "quantile"
    counts_steps = False
    needs = frozenset({HALTING_SIGNAL})
    q: float = 0.5

    def __post_init__(self) -> None:
        self._check("q", 0.0, 1.0)

    def at_level(self, level: float) -> ExitRule:
        """The level is q."""
        return Quantile(level)

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """A probability of 1 that a row is still running."""
        return torch.ones(rows, 1, device=device)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Rows exit where the online cdf is above q."""
        running = memory * _continues(view)
        return 1.0 - running[:, 0] > self.q, running


@dataclass(frozen=True)
class Sample(ExitRule):
    """Draw the exit step from the halting distribution (PonderNet): stop at each step with probability lambda_n.

    One uniform number u a row, drawn at the start, and exit at the first n with cdf_n > u: the law is that of a draw at
    every step, and neither the batch nor the order in which rows leave it changes what a row gets.
    """

    name = "sample"
    counts_steps = False
    needs = frozenset({HALTING_SIGNAL})

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """The probability of still running, and u: the device's own number, or that of a generator on the CPU."""
        if generator is None:
            level = torch.rand(rows, 1, device=device)
        else:
            level = torch.rand(rows, 1, generator=generator).to(device, non_blocking=True)
        return torch.cat([torch.ones_like(level), level], dim=1)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Rows exit where the online cdf is above the number drawn for them."""
        running, level = memory[:, :1] * _continues(view), memory[:, 1:]
        return (1.0 - running > level)[:, 0], torch.cat([running, level], dim=1)


@dataclass(frozen=True)
class Expectation(ExitRule):
    """Mix the predictions of all steps: sum_n p_n softmax(logits_n), or sum_n p_n y_n in regression.

    Nobody exits early, so it saves nothing.
    """

    name = "expectation"
    needs = frozenset({LOGITS, HALTING_SIGNAL})
    mixes = True

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """No row exits before the last step."""
        return all_rows(memory, False), memory


@dataclass(frozen=True)
class Correct(ExitRule):
    """Exit at the first step whose answer the model takes to be right with a probability above the threshold.

    One half is what tiny recursive models train with (Jolicoeur-Martineau 2025, arXiv 2510.04871: q > 0).
    """

    name = "correct"
    counts_steps = False
    needs = frozenset({CORRECTNESS})
    threshold: float = 0.5

    def __post_init__(self) -> None:
        self._check("threshold", 0.0, 1.0)

    def at_level(self, level: float) -> ExitRule:
        """The level is the probability."""
        return Correct(level)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Rows exit where the judgement of their answer is above the threshold."""
        assert view.halting_logits is not None
        return view.halting_logits.sigmoid() > self.threshold, memory


def _continues(view: StepView) -> Tensor:
    """1 - lambda_n, (A, 1)."""
    assert view.halting_logits is not None
    return torch.sigmoid(-view.halting_logits).unsqueeze(1)


# ---- States


def state_moves(state: Tensor, previous: Tensor, before: Tensor | None) -> Tensor:
    """How the last update moved states, relative to their size, float32 (..., 2).

    First the distance ||s_n - s_{n-1}|| / ||s_n||, then the acceleration ||(s_n - s_{n-1}) - (s_{n-1} - s_{n-2})|| /
    ||s_n||, which is NaN after the first update. These two numbers are all that rules read of states, and all that is
    recorded of them. A state of zeros counts as one of the smallest size.

    Args:
        state: s_n, (..., D).
        previous: s_{n-1}.
        before: s_{n-2}; None after the first update.
    """
    update = state.float() - previous.float()
    size = state.float().norm(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
    if before is None:
        turned = torch.full_like(size, math.nan)
    else:
        turned = (update - (previous.float() - before.float())).norm(dim=-1) / size
    return torch.stack([update.norm(dim=-1) / size, turned], dim=-1)


@dataclass(frozen=True)
class _Rest(ExitRule):
    """Exit once a state has come to rest, by one of its moves and a threshold."""

    counts_steps = False
    needs = frozenset({STATES})
    column: ClassVar[int]
    threshold: float

    def __post_init__(self) -> None:
        self._check("threshold", 0.0)

    def at_level(self, level: float) -> ExitRule:
        """The level l is the threshold (1 - l) / l."""
        return replace(self, threshold=(1.0 - level) / level)

    def rests(self, view: StepView) -> Tensor:
        """Whether the move is below the threshold, bool (A,)."""
        assert view.moves is not None
        return view.moves[:, self.column] < self.threshold


@dataclass(frozen=True)
class Distance(_Rest):
    """Exit at the first update with ||s_n - s_{n-1}|| / ||s_n|| below the threshold (Huginn, arXiv 2502.05171)."""

    name = "distance"
    column = 0

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Rows exit where the state moved little."""
        return self.rests(view), memory


@dataclass(frozen=True)
class Acceleration(_Rest):
    """Exit once ||D_n - D_{n-1}|| / ||s_n||, D_n = s_n - s_{n-1}, was below the threshold `times` updates running.

    Pappone et al. 2025 (arXiv 2509.23314) exit where ||D_n - D_{n-1}|| is below a threshold for two updates running;
    relative to the state's size a threshold means the same in models of any width. The first update has none, so that
    nobody exits before update `times` + 1. The memory is how many updates running it was below.
    """

    name = "acceleration"
    column = 1
    times: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("times", 1)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Rows exit after enough updates that turned little."""
        running = torch.where(self.rests(view), memory[:, 0] + 1.0, 0.0)
        return running >= self.times, running.unsqueeze(1)
