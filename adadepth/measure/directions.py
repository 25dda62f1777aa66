"""Which way a metric is better: what selects the model, what a sweep looks for, and what a comparison calls better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from adadepth.measure.names import is_loss
from adadepth.measure.quality import is_hub_metric, metric_key

Direction = Literal["minimize", "maximize"]
_EVALUATION = "eval/"
_GREATER = ("accuracy", "per_second", "speedup_over_dense")  # ends of names that are better greater in any group


def prefers_greater(metric: str | None, chosen: bool | None) -> bool:
    """Return whether the greatest value of the metric that selects a model is the best.

    Args:
        metric: `trainer.metric_for_best_model`; None: the loss, as transformers takes it.
        chosen: `trainer.greater_is_better`; None: losses and errors are better small, everything else great.
    """
    return not is_loss(metric or "loss") if chosen is None else chosen


def direction_of(metric: str, chosen: str | None) -> Direction:
    """Return `minimize` or `maximize`, the direction in which a sweep looks for the best value of a metric.

    Args:
        metric: `optimise`.
        chosen: `hydra.sweeper.direction`; None: losses, costs and depths are minimised, other metrics of an evaluation
            maximised.
    """
    is_quality = metric.startswith(_EVALUATION) or metric.endswith(_GREATER)
    is_greatest = is_quality and not is_loss(metric) if chosen is None else chosen == "maximize"
    return "maximize" if is_greatest else "minimize"


def is_contradicted(metric: str, greater: bool, metrics: Sequence[str]) -> bool:
    """Return whether somebody looks for the worst value of a metric of an evaluation.

    Args:
        metric: Its name without `eval/` or `eval_`.
        greater: Whether its greatest value is taken for the best.
        metrics: `dataset.metrics`. Of those that are somebody's code only their author knows the direction.
    """
    is_own = metric not in {metric_key(name) for name in metrics if is_hub_metric(name)}
    return is_own and greater == is_loss(metric)
