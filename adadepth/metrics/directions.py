"""Direction of every metric: whether a greater or a smaller value is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from adadepth.metrics.metric_names import LIBRARY_ERRORS, is_loss
from adadepth.metrics.task_metrics import (
    ANSWER_METRICS,
    HUB_PREFIX,
    QUALITY_METRICS,
    SCORE,
    TAGGING_METRICS,
    get_metric_key,
    is_hub_metric,
)

Direction = Literal["minimize", "maximize"]
_EVALUATION = "eval/"
_GREATER = ("accuracy", "per_second", "speedup_over_dense")  # endings of names whose greater values are better
# Scores of the `evaluate` library, besides those with the names of this package.
_LIBRARY_SCORES = {"precision", "recall", "matthews_correlation", "pearsonr", "spearmanr", "roc_auc", "r_squared"}


def prefers_greater(metric: str | None, greater_is_better: bool | None) -> bool:
    """Return whether a greater value of a metric is better, so that the best model has the greatest one.

    Args:
        metric: `trainer.metric_for_best_model`, or None for the loss, as in transformers.
        greater_is_better: `trainer.greater_is_better`, or None to decide by the metric: smaller losses and errors are
            better, and greater values of everything else.
    """
    return not is_loss(metric or "loss") if greater_is_better is None else greater_is_better


def is_less_better(measure: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a smaller value of a metric of a run is better, as its settings or else its name say.

    Args:
        measure: Name of the metric, with or without the evaluation set before a slash.
        settings: Configuration of the run. `trainer.greater_is_better` is the direction of the selecting metric.
    """
    trainer = settings.get("trainer") or {}
    selecting, greater = trainer.get("metric_for_best_model") or "loss", trainer.get("greater_is_better")
    if greater is not None and selecting.removeprefix("eval_") == measure.rpartition("/")[2]:
        return not greater
    return is_loss(measure)


def resolve_direction(metric: str, direction: str | None) -> Direction:
    """Return whether a sweep should minimise or maximise a metric, as `minimize` or `maximize`.

    Args:
        metric: `optimise`, the metric that the sweep optimises.
        direction: `hydra.sweeper.direction`, or None to decide by the metric: losses, costs and depths are minimised,
            and other metrics of an evaluation are maximised.
    """
    is_quality = metric.startswith(_EVALUATION) or metric.endswith(_GREATER)
    is_greatest = is_quality and not is_loss(metric) if direction is None else direction == "maximize"
    return "maximize" if is_greatest else "minimize"


def find_unknown_direction(metric: str, metrics: Sequence[str]) -> str | None:
    """Return why it is unknown whether a greater value of an evaluation metric is better, or None if it is known.

    Known are the metrics of this package, losses and accuracies, and the scores and errors of the `evaluate` library
    under their own names. A metric of another owner or folder may have any name.

    Args:
        metric: Name of the metric without `eval/` or `eval_`.
        metrics: `dataset.metrics`. The score is their mean, so it needs the directions of all.
    """
    known_metrics = (*QUALITY_METRICS, *TAGGING_METRICS, *ANSWER_METRICS)
    hub = {get_metric_key(name): name for name in metrics if is_hub_metric(name)}
    for key in hub if metric == SCORE else [metric]:
        path = hub.get(key, "").removeprefix(HUB_PREFIX).partition(":")[0]
        if "/" in path or (key in hub and key not in {*known_metrics, *_LIBRARY_SCORES, *LIBRARY_ERRORS}):
            return f"{hub[key]} of dataset.metrics does not say whether a greater value is better"
    if metric == SCORE or metric in known_metrics or metric in hub or is_loss(metric) or metric.endswith(_GREATER):
        return None
    return f"{metric} does not say whether a greater value is better"


def is_contradicted(metric: str, greater: bool, metrics: Sequence[str]) -> bool:
    """Return whether the configuration would select the worst value of a metric as the best one.

    Args:
        metric: Name of the metric without `eval/` or `eval_`.
        greater: Whether the greatest value counts as the best.
        metrics: `dataset.metrics`. The result is False for metrics of unknown direction.
    """
    return find_unknown_direction(metric, metrics) is None and greater == is_loss(metric)
