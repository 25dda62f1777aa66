"""Whether a depth that is the same for all data was chosen: states of a frozen base, operations of an architecture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from adadepth.analysis.architecture.search import OPERATIONS, is_fixed
from adadepth.analysis.verdict.finding import Answer, Finding, whole_percent

# A distribution as varied as this share of all that it could choose from has chosen nothing.
UNDECIDED = 0.95
# Blocks whose most probable operation has this probability have decided.
SURE = 0.9


def chooses_layers(layers: Mapping[str, Any]) -> Finding:
    """Whether a task learned which states of its base to read.

    Args:
        layers: From `describe_layers`.
    """
    weights, effective = layers["weights"], layers["effective_layers"]
    largest = max(range(len(weights)), key=weights.__getitem__)
    answer: Answer = "no" if effective >= UNDECIDED * len(weights) else "yes"
    chosen = f"in effect {effective:.1f} of {len(weights)} states are read"
    first = f"The weights of layers chose: {chosen}." if answer == "yes" else f"No layer was chosen: {chosen}."
    if layers.get("is_set"):
        answer, first = "set", f"The weights of layers were set beforehand: {chosen}."
    sentences = [
        f"{first} The largest, {whole_percent(weights[largest])}, is that of state {largest}; the mean state is "
        f"{layers['expected_depth']:.1f}. All examples share them."
    ]
    figures = {"effective_layers": effective, "expected_depth": layers["expected_depth"], "states": len(weights)}
    return Finding(answer, sentences, figures)


def chooses_operations(described: Mapping[str, Any]) -> Finding:
    """Whether the gates of an architecture decided.

    Args:
        described: From `describe_architecture`.
    """
    blocks, expected = described["blocks"], described["expected_blocks"]
    thirds = "; ".join(_third(name, counts) for name, counts in
                       zip(("first", "middle", "last"), described["thirds"], strict=True))  # fmt: skip
    by_third = f"Operations by third of the depth: {thirds}."
    figures = {"blocks": blocks, "expected_blocks": expected, "mean_entropy": described["mean_entropy"]}
    if is_fixed(described):
        return Finding("set", [f"The architecture is fixed: {expected:.0f} of {blocks} blocks run.", by_third], figures)
    sure = sum(max(row) >= SURE for row in described["probabilities"])
    share = described["mean_entropy"] / math.log(len(OPERATIONS))
    answer: Answer = "no" if share >= UNDECIDED else "yes" if sure == blocks else "partly"
    first = (
        f"{sure} of {blocks} blocks are sure of their operation (at least {whole_percent(SURE)}); the entropy of the "
        f"gates is {whole_percent(share)} of the largest, and {expected:.1f} blocks are expected to run."
    )
    return Finding(answer, [first, by_third], figures | {"sure_blocks": sure, "entropy_share": share})


def _third(name: str, counts: Mapping[str, int]) -> str:
    told = ", ".join(f"{counts[key]} {key.replace('_', '-')}" for key in OPERATIONS if counts[key])
    return f"{name} {told}"
