"""Breadth at test time: several noisy rollouts of a tiny recursive model on a puzzle, and the choice of one answer.

PTRM (arXiv 2605.19943) adds noise to the reasoning state before every supervision step of a trained model, and EqR
(arXiv 2605.21488) chooses by the residual r:

    z <- z + eps,  eps ~ N(0, sigma^2 I);   y, z <- step(y, z)          one step of a rollout
    r_t = mean over s = t - 2..t of |y_s - y_{s-1}| / |y_s|             how much the answer state still moves

Shape legend: B puzzles, K rollouts of each, N steps, L cells, S positions, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adadepth.errors import ConfigError
from adadepth.halting.exit_rules import ExitRule, Fixed
from adadepth.models.depth.engine import resolve_exit_rule, run_steps
from adadepth.models.trm.modeling import TrmStepper

if TYPE_CHECKING:
    from adadepth.models.trm.modeling import TrmForPuzzles

CHOICES = ("q", "residual", "majority")
_WINDOW = 3  # steps over which the residual is averaged
_STREAM = 1_000_001  # of random numbers, as `adadepth.data.randomness.Purpose` numbers those of the data


class Rollouts(NamedTuple):
    """Answers of several rollouts after every step. After the exit of a rollout, the values at its exit repeat.

    Attributes:
        answers: Predicted symbols, int64 (B, K, N, L).
        q: Logits that the answer is right, float32 (B, K, N).
        residuals: Relative movement of the answer state, mean over the last three steps, float32 (B, K, N).
        exit_steps: Number of steps that each rollout ran, int64 (B, K).
    """

    answers: Tensor
    q: Tensor
    residuals: Tensor
    exit_steps: Tensor

    def choose(self, by: str, rollouts: int | None = None, steps: int | None = None) -> Tensor:
        """Return the number of the chosen rollout of every puzzle, int64 (B,).

        Args:
            by: `q`: largest estimate that the answer is right; `residual`: least residual; `majority`: the whole answer
                that most rollouts give, and among equally frequent ones that with the largest q.
            rollouts: Number of the first rollouts to choose from, or None for all.
            steps: Number of steps of the rollouts, or None for all.

        Raises:
            ConfigError: If `by` is none of these.
        """
        if by not in CHOICES:
            raise ConfigError(f"by={by}: must be one of {', '.join(CHOICES)}")
        last = (self.q.shape[-1] if steps is None else steps) - 1
        q, residuals = self.q[:, :rollouts, last], self.residuals[:, :rollouts, last]
        if by == "q":
            return q.argmax(dim=1)
        if by == "residual":
            return residuals.argmin(dim=1)
        answers = self.answers[:, :rollouts, last]
        votes = (answers.unsqueeze(1) == answers.unsqueeze(2)).all(dim=-1).sum(dim=-1)
        return q.masked_fill(votes < votes.amax(dim=1, keepdim=True), -torch.inf).argmax(dim=1)


class NoisyStepper(TrmStepper):
    """Stepper that adds noise to the reasoning state before every step, and records the residuals of every step.

    Args:
        model: Model in evaluation mode.
        input_ids: Cells of every row, (R, L).
        puzzle_kinds: Kind of puzzle of every row, (R,).
        noise: Standard deviation sigma.
        generators: Random generator of every row.
        steps: Maximum number of steps N.
    """

    def __init__(
        self,
        model: TrmForPuzzles,
        input_ids: Tensor,
        puzzle_kinds: Tensor,
        noise: float,
        generators: Sequence[np.random.Generator],
        steps: int,
    ) -> None:
        super().__init__(model, input_ids, puzzle_kinds, None)
        self._noise, self._generators = noise, generators
        self._running, self._step = torch.arange(self.rows, device=self.device), 0
        self.movements = torch.full((self.rows, steps), torch.nan, device=self.device)

    def advance(self) -> tuple[Tensor, Tensor | None]:
        """Add noise, run one supervision step, and return the logits of the answer and of the Q head."""
        if self._noise:
            shape = self._reasoning.shape[1:]
            drawn = np.stack([rng.standard_normal(shape, dtype=np.float32) for rng in self._generators])
            noise = torch.from_numpy(drawn).to(self.device, self._reasoning.dtype, non_blocking=True)
            self._reasoning = self._reasoning + self._noise * noise
        before = self._answer
        signals = super().advance()
        moved = (self._answer - before).flatten(1).float().norm(dim=1) / self._answer.flatten(1).float().norm(dim=1)
        self.movements[self._running, self._step] = moved
        self._step += 1
        return signals

    def keep(self, rows: Tensor) -> None:
        """Remove all rollouts from the batch except the given ones."""
        super().keep(rows)
        self._running = self._running[rows.to(self.device, non_blocking=True)]
        self._generators = [self._generators[row] for row in rows.tolist()]


@torch.no_grad()
def run_rollouts(
    model: TrmForPuzzles,
    input_ids: Tensor,
    *,
    rollouts: int,
    noise: float,
    steps: int | None = None,
    exit_rule: str | ExitRule | None = None,
    puzzle_kinds: Tensor | None = None,
    numbers: Sequence[int] | None = None,
    seed: int = 0,
) -> Rollouts:
    """Run several noisy rollouts of every puzzle. The exit rule halts each rollout on its own.

    The noise of a rollout depends on the seed, the number of the puzzle and the number of the rollout alone, and not
    on the other puzzles of the batch or on the number of rollouts.

    Args:
        model: Model in evaluation mode.
        input_ids: Cells, (B, L).
        rollouts: Number of rollouts K of each puzzle.
        noise: Standard deviation sigma of the noise; with 0, every rollout is the model without breadth.
        steps: Maximum number of steps N, or None for that of the model.
        exit_rule: Rule that halts rollouts, or None for that of the configuration. With `fixed:k`, none halts.
        puzzle_kinds: Kind of each puzzle, (B,), or None if all puzzles are of the first kind.
        numbers: Number of each puzzle in its data set, (B,), or None for 0 to B - 1.
        seed: Seed of the noise.

    Raises:
        ConfigError: If `rollouts` or `steps` is less than 1 or `noise` is negative, or if the exit rule does not exist.
    """
    steps = model.max_updates if steps is None else steps
    for name, value, least in (("rollouts", rollouts, 1), ("steps", steps, 1), ("noise", noise, 0)):
        if value < least:
            raise ConfigError(f"{name}={value}: must be at least {least}")
    rule = resolve_exit_rule(model, exit_rule)
    rule = Fixed(steps) if isinstance(rule, Fixed) else rule
    kinds = input_ids.new_zeros(len(input_ids)) if puzzle_kinds is None else puzzle_kinds
    generators = [
        np.random.Generator(np.random.Philox(counter=[0, number, rollout, 0], key=[seed, _STREAM]))
        for number in (range(len(input_ids)) if numbers is None else numbers)
        for rollout in range(rollouts)
    ]
    cells = input_ids.repeat_interleave(rollouts, dim=0)
    stepper = NoisyStepper(model, cells, kinds.repeat_interleave(rollouts), noise, generators, steps)
    ran = run_steps(stepper, rule, max_updates=steps, run_all=False)
    assert ran.halting_logits is not None, "a tiny recursive model has a Q head"
    exits = ran.exit_steps.unsqueeze(1)
    reached = torch.arange(1, steps + 1, device=exits.device).minimum(exits)  # (B K, N)
    windows = [stepper.movements[:, max(0, step - _WINDOW) : step].mean(dim=1) for step in range(1, steps + 1)]
    answers = ran.logits.argmax(dim=-1)
    results = (
        answers.gather(1, (reached - 1).unsqueeze(-1).expand_as(answers)),
        ran.halting_logits.gather(1, reached - 1),
        torch.stack(windows, dim=1).gather(1, reached - 1),
        ran.exit_steps,
    )
    return Rollouts(*(values.unflatten(0, (len(input_ids), rollouts)) for values in results))
