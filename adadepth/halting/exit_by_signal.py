"""Exit rules that read halting probabilities, estimates that the answer is right, or changes of hidden states.

Shape legend: A running rows, D width of a state. Steps are numbered from 1.
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
    """Exit once the cumulative halting probability exceeds q (Q-exit, Balagansky & Gavrilov 2022, arXiv 2204.03276).

    The rule uses the online cdf, 1 - prod_{j<=n} (1 - lambda_j), because the truncation at the last step is not known
    yet. The memory holds the product, which is the probability of still running. PALBERT exits above q. Ouro (arXiv
    2510.25741) and arXiv 2607.20519 also exit if the probability equals q, which is `reached=1`.
    """

    name = "quantile"
    counts_steps = False
    needs = frozenset({HALTING_SIGNAL})
    q: float = 0.5
    reached: int = 0

    def __post_init__(self) -> None:
        self._check("q", 0.0, 1.0)
        self._check("reached", 0, 1)

    def with_level(self, level: float) -> ExitRule:
        """Return a copy of the exit rule whose quantile q is the given level in (0, 1)."""
        return replace(self, q=level)

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Return the rule's initial memory: a probability of 1, for each row, of not having exited."""
        return torch.ones(rows, 1, device=device)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows exit at this step because their cumulative halting probability is above q, or equals q."""
        running = memory * _compute_survival(view)
        halted = 1.0 - running[:, 0]
        return halted >= self.q if self.reached else halted > self.q, running


@dataclass(frozen=True)
class ProbabilityRule(ExitRule):
    """Base class of the rules that exit at the first step whose estimated probability exceeds the threshold."""

    counts_steps = False
    threshold: float = 0.5

    def __post_init__(self) -> None:
        self._check("threshold", 0.0, 1.0)

    def with_level(self, level: float) -> ExitRule:
        """Return a copy of the exit rule whose threshold is the given level in (0, 1)."""
        return type(self)(level)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows exit at this step because their probability is above the threshold, boolean (A,)."""
        assert view.halting_logits is not None
        return view.halting_logits.sigmoid() > self.threshold, memory


@dataclass(frozen=True)
class Hazard(ProbabilityRule):
    """Exit at the first step whose halting probability lambda_n exceeds the threshold, whatever earlier ones were.

    Think-at-Hard (arXiv 2511.08577) reads its decider like this. `quantile` adds up the probabilities of all steps
    instead, so that a row may exit where no single step is likely to be the last.
    """

    name = "hazard"
    needs = frozenset({HALTING_SIGNAL})


@dataclass(frozen=True)
class Sample(ExitRule):
    """Exit at each step with probability lambda_n, a random sample of the halting distribution (PonderNet).

    Every row draws one uniform number u at the start and exits at the first n with cdf_n > u. This has the same
    distribution as a separate draw at every step. It depends neither on the batch nor on the order in which rows leave
    the batch.
    """

    name = "sample"
    counts_steps = False
    needs = frozenset({HALTING_SIGNAL})

    def start(self, rows: int, device: torch.device | str, generator: torch.Generator | None = None) -> Tensor:
        """Return the rule's initial memory: probability 1 of not having exited, and a uniform number u for each row.

        The numbers u are drawn on the device, or on the CPU if a generator is given.
        """
        if generator is None:
            level = torch.rand(rows, 1, device=device)
        else:
            level = torch.rand(rows, 1, generator=generator).to(device, non_blocking=True)
        return torch.cat([torch.ones_like(level), level], dim=1)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows exit at this step because their cumulative halting probability exceeds their number u."""
        running, level = memory[:, :1] * _compute_survival(view), memory[:, 1:]
        return (1.0 - running > level)[:, 0], torch.cat([running, level], dim=1)


@dataclass(frozen=True)
class Expectation(ExitRule):
    """Average the predictions of all steps: sum_n p_n softmax(logits_n), or sum_n p_n y_n in regression.

    No row exits early, so the rule saves no compute.
    """

    name = "expectation"
    needs = frozenset({LOGITS, HALTING_SIGNAL})
    mixes = True

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return that no row exits early, because the rule averages the predictions of all steps."""
        return all_rows(memory, False), memory


@dataclass(frozen=True)
class Correct(ProbabilityRule):
    """Exit at the first step at which the estimated probability of a right answer exceeds the threshold.

    Tiny recursive models are trained with the threshold one half (Jolicoeur-Martineau 2025, arXiv 2510.04871: q > 0).
    """

    name = "correct"
    needs = frozenset({CORRECTNESS})


def _compute_survival(view: StepView) -> Tensor:
    """Return each row's probability of continuing after this step, 1 - lambda_n, (A, 1)."""
    assert view.halting_logits is not None
    return torch.sigmoid(-view.halting_logits).unsqueeze(1)


# ---- States


def state_moves(state: Tensor, previous: Tensor, before: Tensor | None) -> Tensor:
    """Return how far the last update moved the hidden states: relative distance and acceleration, float32 (..., 2).

    The first number is the distance ||s_n - s_{n-1}|| / ||s_n||. The second is the acceleration ||(s_n - s_{n-1}) -
    (s_{n-1} - s_{n-2})|| / ||s_n||, which is NaN after the first update. Rules read only these two numbers of a state,
    and recorded steps hold only them. The norm of a state of zeros is replaced by the smallest positive number.

    Args:
        state: State s_n, (..., D).
        previous: State s_{n-1}.
        before: State s_{n-2}, or None after the first update.
    """
    update = state.float() - previous.float()
    size = state.float().norm(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
    if before is None:
        acceleration = torch.full_like(size, math.nan)
    else:
        acceleration = (update - (previous.float() - before.float())).norm(dim=-1) / size
    return torch.stack([update.norm(dim=-1) / size, acceleration], dim=-1)


@dataclass(frozen=True)
class _StateConvergence(ExitRule):
    """Base class of exit rules that stop once the hidden state changes too little between steps."""

    counts_steps = False
    needs = frozenset({STATES})
    column: ClassVar[int]
    threshold: float

    def __post_init__(self) -> None:
        self._check("threshold", 0.0)

    def with_level(self, level: float) -> ExitRule:
        """Return a copy of the exit rule with the threshold (1 - l) / l for a level l in (0, 1)."""
        return replace(self, threshold=(1.0 - level) / level)

    def is_below_threshold(self, view: StepView) -> Tensor:
        """Return whether the last change of each hidden state is below the threshold, bool (A,)."""
        assert view.moves is not None
        return view.moves[:, self.column] < self.threshold


@dataclass(frozen=True)
class Distance(_StateConvergence):
    """Exit at the first update with ||s_n - s_{n-1}|| / ||s_n|| below the threshold (Huginn, arXiv 2502.05171)."""

    name = "distance"
    column = 0

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows exit at this step because their hidden state moved less than the threshold."""
        return self.is_below_threshold(view), memory


@dataclass(frozen=True)
class Acceleration(_StateConvergence):
    """Exit once ||D_n - D_{n-1}|| / ||s_n||, D_n = s_n - s_{n-1}, is below the threshold in `times` updates in a row.

    Pappone et al. 2025 (arXiv 2509.23314) exit if ||D_n - D_{n-1}|| is below a threshold for two consecutive updates.
    Dividing by the norm of the state gives a threshold the same meaning in models of any width. The first update has no
    acceleration, so no row exits before update `times` + 1. The memory is the number of consecutive updates below the
    threshold.
    """

    name = "acceleration"
    column = 1
    times: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("times", 1)

    def decide(self, view: StepView, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows exit at this step because their acceleration was small for `times` updates in a row."""
        running = torch.where(self.is_below_threshold(view), memory[:, 0] + 1.0, 0.0)
        return running >= self.times, running.unsqueeze(1)
