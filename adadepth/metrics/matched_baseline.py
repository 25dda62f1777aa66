"""Matched baselines of a trained model: the model at one fixed depth, or with its depths shuffled over the tokens.

Both choose depths independently of the units, and both have the mean depth of the model.

Shape legend: M units, N steps, B rows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.config.kinds import Problem
from adadepth.metrics.exit_gains import (
    compute_draw_error,
    estimate_fixed_gains,
    estimate_gain_of_groups,
    estimate_permuted_gain,
)
from adadepth.metrics.exit_study import DRAWS, permute_exits
from adadepth.metrics.metric_names import is_loss
from adadepth.metrics.step_records import StepRecords
from adadepth.metrics.step_scores import StepScores

_Metrics = Mapping[str, float]
_Groups = Sequence[_Metrics]  # metrics of each group of sequences


def find_neighbouring_depths(mean: float) -> list[int]:
    """Return the two integer depths next to a mean depth of at least 1.

    There is one depth if the mean is a whole number, otherwise two.
    """
    return sorted({max(1, math.floor(mean)), max(1, math.ceil(mean))})


def compare_recorded(
    records: StepRecords, exits: Tensor, problem: Problem, metrics: Sequence[str], seed: int = 0
) -> dict[str, Any]:
    """Compare the quality of a model's exits with one exit step for all examples, and with shuffled exits.

    Args:
        records: Records of a labelled set with the logits of every step.
        exits: Exit steps of the model, int64 (M,).
        problem: Kind of prediction.
        metrics: Names of the metrics of quality.
        seed: Seed of the permutations.

    Returns:
        The fields of `describe_comparison`, `max_depth`, and `gains` by baseline, see `adadepth.metrics.exit_gains`.
    """
    scores, generator = StepScores(records, problem, metrics), torch.Generator().manual_seed(seed)
    mean = float(exits.double().mean())
    fixed = {depth: scores.score_exits(torch.full_like(exits, depth)) for depth in find_neighbouring_depths(mean)}
    dealt = [permute_exits(exits, generator) for _ in range(DRAWS)]
    permuted = [scores.score_exits(steps) for steps in dealt]
    gains = {
        **estimate_fixed_gains(scores, exits, records.sequences, mean),
        "permuted": estimate_permuted_gain(scores, exits, dealt, records.sequences),
    }
    comparison = describe_comparison(exits, len(exits), scores.score_exits(exits), fixed, permuted)
    return comparison | {
        "max_depth": records.max_updates,
        "gains": {name: {gain["measure"]: gain} for name, gain in gains.items() if gain is not None},
    }


def describe_comparison(
    depths: Tensor, predictions: int, adaptive: _Metrics, fixed: Mapping[int, _Metrics], permuted: Sequence[_Metrics]
) -> dict[str, Any]:
    """Convert the comparison of a model with its matched baselines to JSON values.

    Args:
        depths: Updates of every unit, (M,).
        predictions: Number of predictions behind the metrics.
        adaptive: Metrics of the model.
        fixed: Metrics with the same depth for all units, keyed by that depth.
        permuted: Metrics of each random permutation of the depths.

    Returns:
        `n`, `predictions`, `mean` and `std` of the depths, `own`, `fixed` (rows of `depth` and `quality`) and
        `permuted` (`quality`, `quality_std`, `draws`). Metrics that are not finite are skipped.
    """
    every = (adaptive, *fixed.values(), *permuted)
    names = [name for name in adaptive if all(math.isfinite(metrics[name]) for metrics in every)]
    draws = {name: [metrics[name] for metrics in permuted] for name in names}
    return {
        "n": len(depths),
        "predictions": predictions,
        "mean": float(depths.double().mean()),
        "std": float(depths.double().std(correction=0)),
        "own": {name: adaptive[name] for name in names},
        "fixed": [{"depth": depth, "quality": {name: fixed[depth][name] for name in names}} for depth in sorted(fixed)],
        "permuted": {
            "draws": len(permuted),
            "quality": {name: float(np.mean(values)) for name, values in draws.items()},
            "quality_std": {name: float(np.std(values, ddof=1)) for name, values in draws.items()},
        },
    }


def estimate_gains_of_groups(
    mean: float, adaptive: _Groups, fixed: Mapping[int, _Groups], permuted: Sequence[_Groups]
) -> dict[str, dict[str, Any]]:
    """Return the gains of a model over one fixed depth and over permuted depths, by baseline and metric.

    A whole depth below the mean that is at least as good is `cheaper`.

    Args:
        mean: Mean depth of the model, at which the fixed depth is interpolated.
        adaptive: Metrics of the model on each group of sequences.
        fixed: Metrics on the same groups with the same depth for all units, keyed by that depth.
        permuted: Metrics on the same groups for each random permutation of the depths.
    """
    low, high = min(fixed), max(fixed)
    share = mean - low if high > low else 0.0
    gains: dict[str, dict[str, Any]] = {"fixed": {}, "permuted": {}, "cheaper": {}}
    for name in adaptive[0]:
        adaptive_values = [metrics[name] for metrics in adaptive]
        at_low, at_high = ([metrics[name] for metrics in fixed[depth]] for depth in (low, high))
        draws = np.array([[metrics[name] for metrics in groups] for groups in permuted])
        if all(np.isfinite(values).all() for values in (adaptive_values, at_low, at_high, draws)):
            between = [(1 - share) * first + share * second for first, second in zip(at_low, at_high, strict=True)]
            fixed_gain = estimate_gain_of_groups(name, adaptive_values, between)._replace(baseline_depth=mean)
            permuted_gain = estimate_gain_of_groups(
                name, adaptive_values, draws.mean(axis=0).tolist(), compute_draw_error(draws)
            )
            gains["fixed"][name], gains["permuted"][name] = fixed_gain.to_json(), permuted_gain.to_json()
            cheaper = estimate_gain_of_groups(name, adaptive_values, at_low)._replace(baseline_depth=float(low))
            if low < mean and (cheaper.baseline - cheaper.adaptive) * (-1 if is_loss(name) else 1) >= 0:
                gains["cheaper"][name] = cheaper.to_json()
    return {key: by_metric for key, by_metric in gains.items() if by_metric}


def build_masses_for_depth(masses: Tensor, updates: Tensor, depth: int) -> Tensor:
    """Return halting distributions (masses) with which every token halts after `depth` updates, (N,).

    They are the mean masses of the tokens with at least `depth` updates. Their sum stays below the threshold before the
    last update. The mass of the last update is 1.

    Args:
        masses: Halting masses of tokens, which are 0 after a token halted, (M, N).
        updates: Updates of the same tokens, (M,). At least one token has `depth` updates or more.
        depth: Number of updates, from 1 to N.
    """
    profile = masses[updates >= depth].mean(dim=0)
    profile[depth - 1 :] = 1.0
    return profile


def permute_masses(masses: Sequence[Tensor], valid: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Shuffle the tokens' halting distributions (masses) over all batches.

    Args:
        masses: Halting masses of every batch, (B, T, N).
        valid: Mask of the real tokens of every batch, boolean (B, T).
        generator: Generator on the CPU.

    Returns:
        Masses of every batch, (B, T, N), 0 at padding.
    """
    counts = [int(mask.sum()) for mask in valid]
    joined = torch.cat([part[mask] for part, mask in zip(masses, valid, strict=True)])
    permuted = joined[torch.randperm(len(joined), generator=generator)].split(counts)
    return [
        torch.zeros_like(part).masked_scatter(mask.unsqueeze(-1), new)
        for part, mask, new in zip(masses, valid, permuted, strict=True)
    ]
