"""Correction of a trained model's depth to its target: record of depth and quality before and after, and sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from adadepth.metrics.adaptation import is_collapsed
from adadepth.metrics.metric_names import PREFERRED_QUALITIES


def build_correction_row(metrics: Mapping[str, float], statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Build the record of one side of a correction: mean, standard deviation and number of depths, and metrics.

    Args:
        metrics: Metrics of an evaluation.
        statistics: Depth statistics of the same evaluation.
    """
    everyone = statistics["classes"]["all"]
    depths = {"mean": everyone["mean"], "std": everyone["std"], "effective_depths": math.exp(everyone["entropy"])}
    return {**depths, "metrics": dict(metrics)}


def describe_correction(correction: Mapping[str, Any]) -> list[str]:
    """Return sentences on the shift of the halting bias after training, with depth and quality before and after it.

    Args:
        correction: Value of `depth_correction` in run.json, or an empty mapping, which gives no sentence.
    """
    if not correction:
        return []
    sentences = [
        f"After training, the halting bias was shifted by {correction['shift']:+.2f} to meet the target: "
        f"{describe_change(correction)}, on {correction['examples']:,} sequences of {correction['set']}."
    ]
    if lost := describe_lost_depths(correction):
        sentences.append(
            f"{lost[:1].upper()}{lost[1:]}: it is the same for all units, so depths that differ too little become one. "
            "Training longer, or another budget.target, may keep them apart."
        )
    return sentences


def describe_lost_depths(correction: Mapping[str, Any]) -> str:
    """Say that the correction made equal what had varied; the text is empty if depths did not vary, or still do."""
    if not correction:
        return ""
    before, after = correction["before"], correction["after"]
    if is_collapsed(before["effective_depths"]) or not is_collapsed(after["effective_depths"]):
        return ""
    return f"the shift to the target made {'' if after['std'] == 0 else 'nearly '}all depths equal"


def describe_change(correction: Mapping[str, Any]) -> str:
    """Describe depth and quality before and after the correction in a few words."""
    before, after = correction["before"], correction["after"]
    depths = [
        f"{row['mean']:.2f} ± {row['std']:.2f} updates ({row['effective_depths']:.2f} effective depths)"
        for row in (before, after)
    ]
    changes = [f"from {depths[0]} to {depths[1]}"]
    name = next(
        (name for name in (*PREFERRED_QUALITIES, "loss") if name in before["metrics"] and name in after["metrics"]),
        None,
    )
    if name is not None:
        changes.append(f"{name.replace('_', ' ')} from {before['metrics'][name]:.3f} to {after['metrics'][name]:.3f}")
    return ", ".join(changes)
