"""Losses as named sums over named counts, so that batching cannot change a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossTerm:
    """A part of the loss before normalisation: sum over targets, number of targets, weight in the total."""

    total: Tensor
    count: Tensor
    weight: float = 1.0


def combine_terms(
    terms: Mapping[str, LossTerm], num_targets: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Normalise and add: loss = sum_k weight_k total_k / count_k.

    Args:
        terms: The parts of one (micro-)batch.
        num_targets: Counts to divide by instead of the batch's own: those of the whole optimiser step, over all
            micro-batches and processes, which makes gradients independent of how the step was cut up.

    Returns:
        The loss, and the parts that sum to it, by name. Scalars, float32.
    """
    counts = {name: term.count for name, term in terms.items()} | dict(num_targets or {})
    parts = {
        # A part without targets has a total of 0; the bound keeps 0 / 0 out, and fractions (a count shared by
        # several processes) intact.
        name: term.weight * term.total.float() / counts[name].float().clamp(min=1e-6)
        for name, term in terms.items()
    }
    return torch.stack(list(parts.values())).sum(), parts
