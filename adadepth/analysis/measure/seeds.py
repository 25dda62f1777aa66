"""Several runs that differ in their seed only: mean and deviation of every metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from adadepth.analysis.architecture.search import agreement_over_seeds, architectures_over_seeds
from adadepth.analysis.layers.distribution import distance_over_seeds, weights_over_seeds
from adadepth.analysis.render.formats import is_number


def summarise_seeds(runs: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Mean, sample standard deviation (divided by n - 1), n and values of every metric.

    Args:
        runs: Seed and final metrics of each run; what is not a finite number is left out.

    Returns:
        `seeds`, `n`, and `metrics`: by name `n`, `mean`, `std` (absent for a single value), `values` by seed. A metric
        that some runs lack is there with the smaller n. `layer_distance` if the runs learned weights of layers: see
        `distance_over_seeds`. `architecture_agreement` if they searched architectures: see `agreement_over_seeds`.
    """
    names = dict.fromkeys(name for _, metrics in runs for name in metrics)
    found = {}
    for name in names:
        values = {
            str(seed): float(metrics[name])
            for seed, metrics in runs
            if is_number(metrics.get(name)) and abs(metrics[name]) < math.inf
        }
        if values:
            found[name] = describe(values)
    summary = {"seeds": [seed for seed, _ in runs], "n": len(runs), "metrics": found}
    over_seeds = {
        "layer_distance": distance_over_seeds(weights_over_seeds(found)),
        "architecture_agreement": agreement_over_seeds(architectures_over_seeds(found)),
    }
    return summary | {name: figures for name, figures in over_seeds.items() if figures is not None}


def describe(values: Mapping[str, float]) -> dict[str, Any]:
    """`n`, `mean`, of several values the sample standard deviation `std`, and the values themselves, by seed."""
    numbers = list(values.values())
    described: dict[str, Any] = {"n": len(numbers), "mean": fmean(numbers)}
    if len(numbers) > 1:
        described["std"] = stdev(numbers)
    return described | {"values": dict(values)}


def headline_metrics(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The metrics worth a table: quality and losses at the exit, mean depths, searches; no single steps or blocks."""
    return {
        name: found
        for name, found in summary["metrics"].items()
        if (name.startswith(("eval", "search/compare/")) and "/step_" not in name) or name in _DEPTH_METRICS
    }


_DEPTH_METRICS = (
    "halting/exit_step/mean", "halting/all/mean", "halting/expected_steps", "halting/kl", "halting/calibration/tv",
    "halting/calibration/ece", "halting/layers/entropy", "halting/layers/expected_depth", "halting/layers/deepest",
    "cost/layer_ratio", "cost/adaptive_over_full", "search/mean_entropy", "search/expected_blocks",
    "search/soft/perplexity", "search/argmax/perplexity", "search/sampled/perplexity",
)  # fmt: skip
