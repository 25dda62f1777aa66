"""How long a training will still take, from how long its steps and evaluations took so far."""

from __future__ import annotations

import math
import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adadepth.console import minutes, say

_STEPS, _SECONDS = 3, 2.0  # after so many steps, and so long, the pace counts as known
_WORTH_TELLING = 30.0  # seconds; what is left of a shorter training is not announced


class TimeLeft(TrainerCallback):
    """Measures steps and evaluations of this process, and announces once how long the rest will take.

    The first step, in which memory is allocated and kernels are chosen, does not count.

    Args:
        budget_minutes: After which the training stops; None: it does not.
    """

    def __init__(self, budget_minutes: float | None) -> None:
        self._budget = math.inf if budget_minutes is None else 60 * budget_minutes
        self._begun = self._clock = 0.0
        self._first_step: int | None = None
        self._evaluations: list[float] = []
        self._pace: float | None = None
        self._is_told = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock."""
        self._begun = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take the pace, and announce it when it is known."""
        now = time.monotonic()
        if self._first_step is None:
            self._first_step, self._clock = state.global_step, now
            return
        steps, seconds = state.global_step - self._first_step, now - self._clock
        if steps >= _STEPS and seconds >= _SECONDS:
            self._pace = seconds / steps
            self._announce(args, state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note how long an evaluation took, and take it out of the pace."""
        seconds = float((kwargs.get("metrics") or {}).get("eval_runtime", 0.0))
        self._evaluations.append(seconds)
        self._clock += seconds

    def left(self, args: TrainingArguments, state: TrainerState) -> float | None:
        """Seconds until the training ends, by its last step or by its time budget; None: not known yet."""
        if (needed := self._needed(args, state)) is None:
            return None
        return min(needed, max(0.0, self._budget - (time.monotonic() - self._begun)))

    def _needed(self, args: TrainingArguments, state: TrainerState) -> float | None:
        if self._pace is None:
            return None
        each = sum(self._evaluations) / len(self._evaluations) if self._evaluations else 0.0
        return (state.max_steps - state.global_step) * self._pace + self._evaluations_left(args, state) * each

    def _evaluations_left(self, args: TrainingArguments, state: TrainerState) -> int:
        if args.eval_strategy == "epoch":
            return math.ceil(args.num_train_epochs) - int(state.epoch or 0) if args.max_steps < 0 else 0
        if args.eval_strategy == "no" or not args.eval_steps:
            return 0
        every = int(args.eval_steps)
        return state.max_steps // every - state.global_step // every

    def _announce(self, args: TrainingArguments, state: TrainerState) -> None:
        needed = self._needed(args, state)
        if self._is_told or needed is None or not state.is_world_process_zero:
            return
        self._is_told = True
        left = self.left(args, state) or 0.0
        if needed < _WORTH_TELLING:
            return
        steps = state.max_steps - state.global_step
        if left < needed:
            ends = state.global_step + int(steps * left / needed)
            say(f"expected: {minutes(left)} of time budget, until about step {ends:,} of {state.max_steps:,}")
        else:
            say(f"expected: about {minutes(left)} for the other {steps:,} steps")
