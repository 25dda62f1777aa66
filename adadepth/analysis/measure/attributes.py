"""Depth and accuracy by what is known of each example: of a puzzle its givens, the length of its path, its rating."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adadepth.analysis.measure.correlation import spearman
from adadepth.analysis.measure.sequence_classes import bucket_edges
from adadepth.analysis.measure.summary import describe_histogram, put_accuracy

PARTS = 16  # of similar size, in which more values than that are told
FEWEST = 10  # examples of a part; rarer values join their neighbours


def describe_attributes(
    attributes: Mapping[str, NDArray[np.int64]], depth: NDArray[np.int64], right: NDArray[np.bool_]
) -> dict[str, dict[str, Any]]:
    """Figures of depth for every value of every attribute, or for ranges of values that are many or rare.

    Args:
        attributes: By name, whole numbers from 0 on, (examples,) each. One that is the same for all is left out.
        depth: Updates of each example, (examples,).
        right: Whether its answer is right, likewise.

    Returns:
        For every attribute `rows`, each with the range of values `from`, `to` and their mean `value`, the figures of
        depth, `accuracy` and `accuracy_n`; and `spearman`, of depth with the attribute, where it exists.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, values in attributes.items():
        if (values == values[0]).all():
            continue
        found[name] = {"rows": [_row(values[part], depth[part], right[part]) for part in _parts(values)]}
        if (correlation := spearman(depth, values)) is not None:
            found[name]["spearman"] = correlation._asdict()
    return found


def _parts(values: NDArray[np.int64]) -> Iterator[NDArray[np.bool_]]:
    """Which examples belong together, by increasing value."""
    part = np.searchsorted(bucket_edges(torch.from_numpy(values), PARTS), values)
    last = part.max()
    together = np.zeros(len(values), dtype=bool)
    for number in np.unique(part):
        together = together | (part == number)
        left = (part > number).sum()
        if number == last or (together.sum() >= FEWEST and left >= FEWEST):
            yield together
            together = np.zeros_like(together)


def _row(values: NDArray[np.int64], depth: NDArray[np.int64], right: NDArray[np.bool_]) -> dict[str, Any]:
    row: dict[str, Any] = {"value": float(values.mean()), "from": int(values.min()), "to": int(values.max())}
    row |= describe_histogram(np.bincount(depth))
    put_accuracy(row, right.sum(), len(right))
    return row
