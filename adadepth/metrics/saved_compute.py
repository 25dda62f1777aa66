"""Quality at given shares of saved compute, beside that of full depth, as papers on early exit report it.

A value lies on the line between two measured points (compute, score) of one exit rule, whose threshold varies. A random
mixture of both thresholds has this compute and this score. The score of a text is minus its loss in nats, and is shown
as perplexity exp(loss). There are no values outside the measured points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

SAVED_SHARES = (0.05, 0.1, 0.2, 0.3)
_LARGEST_LOSS = 700.0  # the exponential of a larger one is no float


def interpolate_score(points: Sequence[tuple[float, float]], compute: float) -> float | None:
    """Return the score at a compute, on the line between the nearest measured points, or None outside of them.

    Args:
        points: Pairs of compute and score. Among points of equal compute, the highest score counts.
        compute: Compute at which the score is interpolated, in the unit of the points.
    """
    below = max((point for point in points if point[0] <= compute), default=None)
    above = min(
        (point for point in points if point[0] >= compute), key=lambda point: (point[0], -point[1]), default=None
    )
    if below is None or above is None:
        return None
    if below[0] == above[0]:
        return below[1]
    share = (compute - below[0]) / (above[0] - below[0])
    return (1.0 - share) * below[1] + share * above[1]


def interpolate_saved(points: Sequence[tuple[float, float]], full: float) -> list[float | None]:
    """Return the score at every share of `SAVED_SHARES`, of the compute `full` of full depth, or None outside."""
    return [interpolate_score(points, (1.0 - share) * full) for share in SAVED_SHARES]


def compute_perplexity(score: float) -> float:
    """Return the perplexity exp(-score) for a score that is minus a loss in nats."""
    return math.exp(min(-score, _LARGEST_LOSS))


def summarise_saved_compute(readings: Mapping[str, Sequence[Mapping[str, Any]]], *, is_text: bool) -> dict[str, Any]:
    """Return quality at given shares of saved compute for every exit rule of one model, beside that of full depth.

    Args:
        readings: Result of `adadepth.metrics.exit_rule_selection.readings`, with the fixed depths as `fixed`.
        is_text: Whether scores are minus losses in nats.

    Returns:
        `measure`, `perplexity` or `score`; `full`, its value at full depth; `macs`, the compute of full depth; the
        saved `shares`; and `rows` with the name of each `rule`, its `values`, one for each share or None outside of its
        measured points, and the number of these `points`. The dictionary is empty without a score at full depth.
    """
    fixed = readings.get("fixed", ())
    if not fixed or fixed[-1]["score"] is None:
        return {}
    full, show = fixed[-1], compute_perplexity if is_text else float
    rows = []
    for rule, rule_points in readings.items():
        points = [(point["macs"], point["score"]) for point in rule_points if point["score"] is not None]
        scores = interpolate_saved(points, full["macs"])
        values = [None if score is None else show(score) for score in scores]
        rows.append({"rule": rule, "values": values, "points": len(points)})
    return {
        "measure": "perplexity" if is_text else "score",
        "full": show(full["score"]),
        "macs": full["macs"],
        "shares": list(SAVED_SHARES),
        "rows": rows,
    }
