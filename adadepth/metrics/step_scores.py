"""Scores of recorded examples at exit steps: metrics of their predictions, or the loss of the tokens of a text.

Shape legend: M examples, N steps, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adadepth.config.kinds import Problem
from adadepth.metrics.scoring import compute_example_losses, compute_quality, is_right
from adadepth.metrics.step_records import StepRecords

NEAR = -math.log(0.99)  # nats of a token by which its likelihood falls to 99 %


class StepScores:
    """Scorer of recorded examples at any exit step.

    The losses of the tokens of a text are computed only once. A different choice of exits then needs no pass over the
    logits.

    Args:
        records: Records of a labelled set with the logits of every step.
        problem: Kind of prediction. For a language model it is the next token.
        metrics: Names of the metrics for `compute_quality`.

    Attributes:
        right: Mask of the steps with a right prediction, boolean (M, N). None for a regression.
        losses: Cross-entropy in nats of every step of a language model, float64 (M, N). None for other problems.
        by_step: Score of each example at every step, float64 (M, N): 1 for a right prediction, 0 for a wrong one, or
            minus the loss. None for a regression.
    """

    def __init__(self, records: StepRecords, problem: Problem, metrics: Sequence[str]) -> None:
        assert records.step_logits is not None
        assert records.labels is not None
        self._step_logits, self._labels = records.step_logits, records.labels
        self._problem, self._metrics = problem, metrics
        self.right = None if problem == "regression" else is_right(self._step_logits, self._labels)
        self.losses: Tensor | None = None
        if problem == "language_model":
            by_step = (
                compute_example_losses(logits, self._labels, problem) for logits in self._step_logits.unbind(dim=1)
            )
            self.losses = torch.stack(list(by_step), dim=1).double()
        by_rightness = None if self.right is None else self.right.double()
        self.by_step = by_rightness if self.losses is None else -self.losses

    def score_exits(self, steps: Tensor) -> dict[str, float]:
        """Return the metrics, and `score`, of the predictions at given exit steps, int64 (M,)."""
        if self.losses is None:
            return self.score_logits(self._step_logits[torch.arange(len(steps)), steps - 1])
        loss = float(_gather_steps(self.losses, steps).mean())
        return {"loss": loss, "score": -loss}

    def score_logits(self, logits: Tensor) -> dict[str, float]:
        """Return the metrics and `score` of predictions from their logits, (M, C)."""
        return compute_quality(logits, self._labels, self._problem, self._metrics)

    def score_examples(self, steps: Tensor) -> Tensor | None:
        """Return the score of each example at its exit step, float64 (M,).

        The score is 1 for a right prediction and 0 for a wrong one. For a text it is minus the loss. The result is None
        for a regression.
        """
        return None if self.by_step is None else _gather_steps(self.by_step, steps)


def _gather_steps(values: Tensor, steps: Tensor) -> Tensor:
    return values.gather(1, steps.unsqueeze(1) - 1).squeeze(1)


def find_least_loss_exits(losses: Tensor) -> Tensor:
    """Return the first step with the smallest loss, int64 (M,), from losses (M, N).

    This is an upper bound and not a method that can be run, because it uses the labels.
    """
    return losses.argmin(dim=1) + 1


def find_near_last_exits(losses: Tensor, tolerance: float = NEAR) -> Tensor:
    """Return the first step from which the loss stays close to that of the last step, int64 (M,).

    Args:
        losses: Losses of every step, (M, N).
        tolerance: Largest accepted difference in nats to the loss of the last step.
    """
    return find_first_stable_step(losses <= losses[:, -1:] + tolerance)


def find_first_stable_step(holds: Tensor) -> Tensor:
    """Return the first step from which a condition holds until the last step, or N if there is none.

    The condition is boolean, (M, N). The result is int64, (M,).
    """
    steps = holds.shape[1]
    return (steps + 1 - holds.flip(1).int().cumprod(dim=1).sum(dim=1)).clamp(max=steps)
