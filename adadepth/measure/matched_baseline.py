"""The matched baseline of a trained model: the same network read at one depth, and with its depths dealt at random.

Neither knows anything of the units that it spends depth on, and both spend as much as the model does in the mean.

Shape legend: M units, N steps, B rows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adadepth.measure.exit_records import StepRecords
from adadepth.measure.exit_scores import StepScores
from adadepth.measure.exit_study import DRAWS, random_exits
from adadepth.settings.kinds import Problem

_Metrics = Mapping[str, float]


def neighbouring_depths(mean: float) -> list[int]:
    """Return the whole depths next to a mean depth of at least 1: one where the mean is whole, else two."""
    return sorted({max(1, math.floor(mean)), max(1, math.ceil(mean))})


def compare_recorded(
    records: StepRecords, exits: Tensor, problem: Problem, metrics: Sequence[str], seed: int = 0
) -> dict[str, Any]:
    """Compare exits with one step for all units and with the same exits dealt to the units at random.

    Args:
        records: Of a labelled set, with the logits of every step.
        exits: Of the model, int64 (M,).
        problem: What is predicted.
        metrics: Names for the quality.
        seed: Of the draws.

    Returns:
        What `describe_comparison` returns.
    """
    scores, generator = StepScores(records, problem, metrics), torch.Generator().manual_seed(seed)
    mean = float(exits.double().mean())
    fixed = {depth: scores.at(torch.full_like(exits, depth)) for depth in neighbouring_depths(mean)}
    dealt = [scores.at(random_exits(exits, generator)) for _ in range(DRAWS)]
    return describe_comparison(exits, len(exits), scores.at(exits), fixed, dealt) | {"max_depth": records.max_updates}


def describe_comparison(
    depths: Tensor, predictions: int, own: _Metrics, fixed: Mapping[int, _Metrics], dealt: Sequence[_Metrics]
) -> dict[str, Any]:
    """Return the comparison as JSON values.

    Args:
        depths: Updates of every unit, (M,).
        predictions: Number of predictions that the metrics are of.
        own: Metrics of the model.
        fixed: Metrics by the depth that all units had.
        dealt: Metrics of each draw in which the depths were dealt at random.

    Returns:
        `n`, `predictions`, `mean` and `std` of the depths, `own`, `fixed` (rows of `depth` and `quality`) and
        `permuted` (`quality`, `quality_std`, `draws`). Metrics that are not finite are left out.
    """
    names = [name for name in own if all(math.isfinite(one[name]) for one in (own, *fixed.values(), *dealt))]
    drawn = {name: [one[name] for one in dealt] for name in names}
    return {
        "n": len(depths),
        "predictions": predictions,
        "mean": float(depths.double().mean()),
        "std": float(depths.double().std(correction=0)),
        "own": {name: own[name] for name in names},
        "fixed": [
            {"depth": depth, "quality": {name: one[name] for name in names}} for depth, one in sorted(fixed.items())
        ],
        "permuted": {
            "draws": len(dealt),
            "quality": {name: float(np.mean(values)) for name, values in drawn.items()},
            "quality_std": {name: float(np.std(values, ddof=1)) for name, values in drawn.items()},
        },
    }


def masses_of_depth(masses: Tensor, updates: Tensor, depth: int) -> Tensor:
    """Return the halting masses with which every token gets `depth` updates, (N,).

    They are the mean masses of the tokens that got at least as many updates, so that their sum stays below the
    threshold until the last one, which has all that is left.

    Args:
        masses: Of some tokens, 0 once they have halted, (M, N).
        updates: Of the same tokens, (M,); at least one is not below `depth`.
        depth: From 1 to N.
    """
    profile = masses[updates >= depth].mean(dim=0)
    profile[depth - 1 :] = 1.0
    return profile


def deal_masses(masses: Sequence[Tensor], valid: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Deal the halting masses of the tokens of all batches to those tokens at random.

    Args:
        masses: Of every batch, (B, T, N).
        valid: Real tokens of every batch, boolean (B, T).
        generator: On the CPU.

    Returns:
        Masses of every batch, (B, T, N), 0 at padding.
    """
    counts = [int(mask.sum()) for mask in valid]
    everything = torch.cat([part[mask] for part, mask in zip(masses, valid, strict=True)])
    dealt = everything[torch.randperm(len(everything), generator=generator)].split(counts)
    return [
        torch.zeros_like(part).masked_scatter(mask.unsqueeze(-1), new)
        for part, mask, new in zip(masses, valid, dealt, strict=True)
    ]
