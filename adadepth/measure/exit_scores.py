"""The quality of recorded examples under exit steps: metrics of their predictions, or of a text its tokens' losses.

Shape legend: M examples, N steps, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adadepth.measure.exit_records import StepRecords
from adadepth.measure.scoring import example_losses, is_right, quality_of
from adadepth.settings.kinds import Problem

NEAR = -math.log(0.99)  # nats of a token: at so much more its likelihood is 99 %


class StepScores:
    """What exit steps are worth on recorded examples.

    The losses of a text's tokens are computed once, so that a further choice of exits costs no pass over the logits.

    Args:
        records: Of a labelled set, with the logits of every step.
        problem: What is predicted; of a language model the next token.
        metrics: Names for `quality_of`.

    Attributes:
        right: Which step's prediction is right, boolean (M, N); None of values.
        losses: Cross-entropy in nats of every step of a language model, float64 (M, N); else None.
    """

    def __init__(self, records: StepRecords, problem: Problem, metrics: Sequence[str]) -> None:
        assert records.step_logits is not None
        assert records.labels is not None
        self._step_logits, self._labels, self._problem, self._metrics = (
            records.step_logits, records.labels, problem, metrics,
        )  # fmt: skip
        self.right = None if problem == "regression" else is_right(self._step_logits, self._labels)
        self.losses: Tensor | None = None
        if problem == "language_model":
            by_step = (example_losses(logits, self._labels, problem) for logits in self._step_logits.unbind(dim=1))
            self.losses = torch.stack(list(by_step), dim=1).double()

    def at(self, steps: Tensor) -> dict[str, float]:
        """The metrics, and `score`, of the predictions at exit steps, int64 (M,)."""
        if self.losses is None:
            return self.of(self._step_logits[torch.arange(len(steps)), steps - 1])
        loss = float(_chosen(self.losses, steps).mean())
        return {"loss": loss, "score": -loss}

    def of(self, logits: Tensor) -> dict[str, float]:
        """The same of other predictions, from their logits (M, C)."""
        return quality_of(logits, self._labels, self._problem, self._metrics)

    def values(self, steps: Tensor) -> Tensor | None:
        """What predictions are worth at exits, float64 (M,): whether they are right, or minus their nats."""
        if self.losses is not None:
            return -_chosen(self.losses, steps)
        return None if self.right is None else _chosen(self.right.double(), steps)


def _chosen(values: Tensor, steps: Tensor) -> Tensor:
    return values.gather(1, steps.unsqueeze(1) - 1).squeeze(1)


def least_loss_exits(losses: Tensor) -> Tensor:
    """Upper bound, not a system: the first step of the least loss, (M, N) to int64 (M,)."""
    return losses.argmin(dim=1) + 1


def near_last_exits(losses: Tensor, tolerance: float = NEAR) -> Tensor:
    """The first step from which on the loss is never more than `tolerance` above the last one's, int64 (M,).

    It is as good as the last step but for the tolerance, at the fewest updates: what a rule needs that stops when more
    updates would change nothing.
    """
    near = losses <= losses[:, -1:] + tolerance
    stays = near.flip(1).int().cumprod(dim=1)
    return losses.shape[1] - stays.sum(dim=1) + 1
