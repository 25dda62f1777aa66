"""Statistics of a learned distribution over the layers of a frozen base model.

State n is the hidden state after n blocks of the base, n = 0..N. State 0 is the output of the embeddings. States up to
n require n blocks to run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

WEIGHTS, WEIGHT = "halting/layers/weights", "halting/layers/weight/"


def describe_layers(weights: Sequence[float]) -> dict[str, Any]:
    """Return statistics of a learned distribution over the hidden states of a base model.

    Args:
        weights: Weight w_n of every state n = 0..N. Weights are at least 0 and sum to 1.

    Returns:
        `weights`; `entropy` H = -sum w_n ln w_n in nats, from 0 to ln(N + 1); `effective_layers` exp(H), the number of
        equally weighted states with this entropy; `expected_depth` sum n w_n; `deepest`, the last state with a positive
        weight, which is the number of blocks that must run; and `active`, the number of states with a positive weight.
    """
    used = [(state, weight) for state, weight in enumerate(weights) if weight > 0]
    assert used, "a distribution has a weight somewhere"
    entropy = max(-sum(weight * math.log(weight) for _, weight in used), 0.0)
    return {
        "weights": list(weights),
        "entropy": entropy,
        "effective_layers": math.exp(entropy),
        "expected_depth": sum(state * weight for state, weight in used),
        "deepest": used[-1][0],
        "active": len(used),
    }


def collect_seed_weights(metrics: Mapping[str, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the learned weight of every hidden state over several seeds, by hidden state."""
    weights = {int(name.removeprefix(WEIGHT)): metric for name, metric in metrics.items() if name.startswith(WEIGHT)}
    return dict(sorted(weights.items()))


def compute_seed_distance(weights: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Compute the total variation distance between the layer weights of every pair of seeds.

    TV(w, v) = 1/2 sum_n |w_n - v_n|. It is 0 if the distributions are equal, and 1 if they share no state.

    Args:
        weights: Weights by state, from `collect_seed_weights`.

    Returns:
        `mean`, `max` and the number of `pairs`, or None for fewer than two distributions over the same states.
    """
    columns = [metric["values"] for metric in weights.values()]
    seeds = [seed for seed in (columns[0] if columns else ()) if all(seed in column for column in columns)]
    if len(seeds) < 2:
        return None
    distances = [
        sum(abs(column[one] - column[other]) for column in columns) / 2 for one, other in combinations(seeds, 2)
    ]
    return {"mean": fmean(distances), "max": max(distances), "pairs": len(distances)}
