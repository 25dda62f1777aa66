"""Halting units in tests: logits by a plain loop over the updates of one token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor


def compute_halting_logit(weights: Mapping[str, Tensor], name: str, trail: Sequence[Tensor]) -> Tensor:
    """Return z_n of one token from its states h_1 to h_n, (H,) each.

    Args:
        weights: Weights of a model by name, with those of the unit `linear`, or of `movement` of examples/plugin.
        name: Start of the names of the unit's weights.
        trail: States h_1 to h_n.
    """
    h = trail[-1]
    if name + "slope" not in weights:
        return h @ weights[name + "weight"][0] + weights[name + "bias"][0]
    z = h @ weights[name + "weights.weight"][0] + weights[name + "bias"][0]
    if len(trail) == 1:
        return z
    distance, length = (((states**2).sum()).sqrt() for states in (h - trail[-2], trail[-2]))
    return z + weights[name + "slope"][0] * distance / length
