"""Selection of the best model when its metric is undefined."""

from __future__ import annotations

import math
from collections.abc import Mapping

_PREFIX = "eval_"


def fill_undefined_metric(metrics: Mapping[str, float], selecting: str | None) -> dict[str, float]:
    """Return the metrics of an evaluation, with NaN for the selection metric if it is missing.

    A correlation of constant predictions is undefined, which is no reason to stop. NaN is never better than an earlier
    value, so the evaluation counts as one without improvement.

    Args:
        metrics: Metrics of an evaluation under the names of transformers.
        selecting: `metric_for_best_model`, with or without its prefix, or None if no metric selects the model.
    """
    if selecting is None:
        return dict(metrics)
    return {_PREFIX + selecting.removeprefix(_PREFIX): math.nan, **metrics}
