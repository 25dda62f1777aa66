"""Gains of exits that depend on the example over exits that do not, with errors over whole sequences.

A gain compares the mean score of the same examples under two choices of exit steps. The score of an example is 1 for a
right prediction and 0 for a wrong one, or its loss. A gain is about one trained network: its error is that of the
sequences, and not that of training with another seed.

Shape legend: M examples, N steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adadepth.metrics.halves import select_first_half
from adadepth.metrics.significance import average_over_seeds, sum_clusters
from adadepth.metrics.step_scores import StepScores


class Gain(NamedTuple):
    """Comparison of a model with a baseline on the same examples.

    Attributes:
        measure: `accuracy`, or `loss` in nats.
        adaptive: Value of the model.
        baseline: Value of the baseline.
        error: Standard error of the difference, or None for too few sequences.
        freedom: Degrees of freedom of the error.
        sequences: Number of independent sequences, or of groups of them.
        baseline_depth: Fixed exit step of the baseline, which is between two steps for a mixture; None for others.
        full_depth: Last step, beside a fixed exit step; None for others.
        full_depth_value: Value at the last step, likewise.
        selected_on: Number of other sequences, on which the fixed exit step was selected; None for others.
    """

    measure: str
    adaptive: float
    baseline: float
    error: float | None
    freedom: float
    sequences: int
    baseline_depth: float | None = None
    full_depth: int | None = None
    full_depth_value: float | None = None
    selected_on: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields for a file, in which unknown degrees of freedom are None."""
        return self._asdict() | {"freedom": self.freedom if math.isfinite(self.freedom) else None}


def estimate_fixed_gains(
    scores: StepScores, exits: Tensor, sequences: Tensor, most: float
) -> dict[str, dict[str, Any]]:
    """Compare exits with the best fixed step of at most a given mean, and with a cheaper one that is as good.

    Between two steps, the best may be their mixture of the given mean. Steps are selected on one half of the sequences
    and compared on the other, because the best of several equal steps looks better on the examples that select it.

    Args:
        scores: Scores of the examples.
        exits: Exit steps, int64 (M,).
        sequences: Number of the sequence of each example, (M,).
        most: Largest fixed step. It may lie between two steps.

    Returns:
        The gain over the best step as `fixed`, and the gain over the first step below `most` with at least the score of
        the exits as `cheaper`, if there is such a step and it is not the best. Empty without scores of examples.
    """
    adaptive = scores.score_examples(exits)
    if scores.by_step is None or adaptive is None or most < 1:
        return {}
    values, low = scores.by_step.numpy(), math.floor(most)
    candidates: dict[float, NDArray[np.float64]] = {float(k): values[:, k - 1] for k in range(1, low + 1)}
    if low < min(most, values.shape[1]):
        share = most - low
        candidates[most] = (1 - share) * values[:, low - 1] + share * values[:, low]
    clusters = sequences.numpy()
    first = select_first_half(clusters)
    rest, selecting = ~first, first if first.any() else ~first  # a single sequence has no other half
    means = {step: float(candidates[step][selecting].mean()) for step in candidates}
    least = float(adaptive.numpy()[selecting].mean())
    best = max(means, key=means.__getitem__)
    cheaper = next((step for step, mean in means.items() if step < most and mean >= least), best)

    def compare(depth: float) -> dict[str, Any]:
        gain = _estimate(scores, adaptive.numpy()[rest], candidates[depth][rest], clusters[rest])
        return gain._replace(
            baseline_depth=depth,
            full_depth=values.shape[1],
            full_depth_value=_get_sign(scores) * float(values[rest, -1].mean()),
            selected_on=len(np.unique(clusters[first])),
        ).to_json()

    return {"fixed": compare(best)} | ({} if cheaper == best else {"cheaper": compare(cheaper)})


def estimate_permuted_gain(
    scores: StepScores, exits: Tensor, permuted: Sequence[Tensor], sequences: Tensor
) -> dict[str, Any] | None:
    """Compare exits with the same exits in random orders, (M,) each; return None without scores of examples."""
    adaptive = scores.score_examples(exits)
    draws = [values.numpy() for steps in permuted if (values := scores.score_examples(steps)) is not None]
    if adaptive is None or not draws:
        return None
    gain = _estimate(scores, adaptive.numpy(), np.mean(draws, axis=0), sequences.numpy())
    if gain.error is not None:
        gain = gain._replace(error=math.hypot(gain.error, compute_draw_error(np.stack(draws))))
    return gain.to_json()


def compute_draw_error(draws: NDArray[np.float64]) -> float:
    """Return the standard error of a mean over D random draws, at least two, from their values, (D, M)."""
    return float(draws.mean(axis=1).std(ddof=1)) / math.sqrt(len(draws))


def estimate_gain_of_groups(
    measure: str, adaptive: Sequence[float], baseline: Sequence[float], draw_error: float = 0.0
) -> Gain:
    """Compare a model with a baseline by their values of the same groups of sequences, G each.

    Args:
        measure: Name of the metric.
        adaptive: Values of the model.
        baseline: Values of the baseline.
        draw_error: Standard error of the baseline over its random draws.
    """
    difference = average_over_seeds([first - second for first, second in zip(adaptive, baseline, strict=True)])
    error = None if difference.error is None else math.hypot(difference.error, draw_error)
    return Gain(measure, fmean(adaptive), fmean(baseline), error, difference.freedom, difference.seeds)


def _estimate(
    scores: StepScores, adaptive: NDArray[np.float64], baseline: NDArray[np.float64], clusters: NDArray[np.int64]
) -> Gain:
    sign, difference = _get_sign(scores), sum_clusters(adaptive - baseline, clusters).estimate_mean()
    return Gain(
        "accuracy" if scores.losses is None else "loss", sign * float(adaptive.mean()), sign * float(baseline.mean()),
        difference.error, difference.freedom, len(np.unique(clusters)),
    )  # fmt: skip


def _get_sign(scores: StepScores) -> float:
    """Return the factor that turns the score of an example into the value of its metric."""
    return 1.0 if scores.losses is None else -1.0
