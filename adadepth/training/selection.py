"""Value of the metric that selects the best model when an evaluation leaves it undefined."""

from __future__ import annotations

import math
from collections.abc import Mapping

_PREFIX = "eval_"


def fill_undefined_metric(metrics: Mapping[str, float], selecting: str | None) -> dict[str, float]:
    """Return the metrics of an evaluation with NaN for a missing metric that selects the model.

    A correlation of constant predictions is undefined, which is no reason to stop: NaN is better than no earlier value,
    so that the evaluation counts as one without improvement.

    Args:
        metrics: Metrics of an evaluation under the names of transformers.
        selecting: `metric_for_best_model`, with or without its prefix; None: nothing selects.
    """
    if selecting is None:
        return dict(metrics)
    return {_PREFIX + selecting.removeprefix(_PREFIX): math.nan, **metrics}
